# SPDX-License-Identifier: Apache-2.0
"""Module by module, the peaks are those of PyTorch's own MemTracker."""

import pytest

from tests.system.e2e import running


@pytest.mark.parametrize("model", [
    "adam", "checkpointed", pytest.param("momentum", marks=pytest.mark.long)])
def test_peaks_of_modules_and_categories(model):
    found = running.last_json(running.on_device(
        "256MiB", running.program("mem_tracker.py"), model))
    assert len(found["modules"]) == 16
    differ = {what: pair for kind in found.values()
              for what, pair in kind.items() if pair[0] != pair[1]}
    assert not differ, differ
