# SPDX-License-Identifier: Apache-2.0
"""Short programs with many streams under five seeds of the async mode.

Under PyTorch's own allocator a report would be a false one; under ours it is a
mistake of ours. small/run.py does the same with as many seeds as are asked for.
"""

import pytest

from tests.system.e2e import running
from tests.system.e2e.small import run

pytestmark = pytest.mark.skipif(not running.SIMULATED,
                                reason="seeds belong to the simulated device")


def _result(allocator, seeds, *options):
    return running.last_json(
        running.stratalloc(*run.command(allocator, seeds, *options)))


@pytest.mark.parametrize("seeds", [
    2, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("allocator", ["native", "stratalloc"])
def test_a_few_seeds(allocator, seeds):
    result = _result(allocator, f"1-{seeds}")
    assert result["failures"] == []
    assert result["runs"] >= seeds * 16
    assert result["counters"]["launches_without_twin"] == 0


def test_a_missing_edge_is_seen():
    result = _result("native", "1-2", "--planted", "--only", "")
    assert result["failed"] >= 2
    for failure in result["failures"]:
        assert failure["scenario"] == "missing_edge"
        assert failure["what"].startswith("race: ")
