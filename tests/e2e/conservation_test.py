# SPDX-License-Identifier: Apache-2.0
"""Whatever programs do, every sum of a report is another's, and torch's."""

import pytest

from tests.e2e import running


@pytest.mark.parametrize("first", [1, 1001])
def test_seeded_programs(first):
    found = running.last_json(running.on_device(
        "24MiB", running.program("conservation.py"), str(first),
        str(first + 19)))
    assert not found["wrong"]
    assert found["programs"] == 20 and found["looks"] > 60
    assert len(found["steps"]) == 20  # each kind of step was taken
    # What the sums must survive has happened, and not by chance.
    for what in ("layers", "programs with 3 threads", "programs with evictions",
                 "checkpoints, reentrant", "checkpoints, not reentrant",
                 "checkpoints, nested", "raised in forward",
                 "raised in backward", "raised in a scope", "out of memory",
                 "backwards on another thread", "threads ended in a scope",
                 "answers to another thread"):
        assert found["happened"].get(what), (what, found["happened"])
