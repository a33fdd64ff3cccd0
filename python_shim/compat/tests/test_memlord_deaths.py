# SPDX-License-Identifier: Apache-2.0
"""What runs where a storage dies: nothing of Python's, since Python discards a
KeyboardInterrupt that is raised there. And the numbers are right all the same.
"""

import gc
import sys
import threading
import weakref

import pytest
import torch

from stratalloc.compat.memlord import MemLord

_CPU = torch.device("cpu")
_KIB = 1024


@pytest.fixture
def mem():
    made = MemLord({})
    with made.hook_into_torch(), made.hook_into_python():
        yield made


def _codes(deed):
    """Functions of Python that deed() runs, itself left out."""
    found = []

    def heard(frame, event, _):
        if event == "call":
            found.append(frame.f_code)

    sys.setprofile(heard)
    try:
        deed()
    finally:
        sys.setprofile(None)
    return found[1:]


def test_no_python_runs_where_a_storage_dies(mem):
    kept = [torch.empty(_KIB, dtype=torch.uint8) for _ in range(3)]
    ring = [torch.empty(_KIB, dtype=torch.uint8)]
    ring.append(ring)
    assert mem.allocated()[0] == 4 * _KIB

    def die():
        del kept[0]
        kept.pop()
        ring.clear()

    assert _codes(die) == []
    assert (mem.allocated()[0], mem.freed()[0]) == (_KIB, 3 * _KIB)

    # Nor while a model runs, but where something is counted.
    model = torch.nn.Linear(8, 8)
    for _ in range(3):
        model(torch.ones(4, 8)).sum().backward()
    del model
    gc.collect()
    kept.clear()
    assert mem.allocated()[0] == 0


def test_a_place_that_is_another_storages_now(mem):
    # Until somebody counts, the dead one's entry lies where the new one's will.
    storages = set()
    for size in range(1, 200):
        x = torch.empty(size * _KIB, dtype=torch.uint8)
        storages.add(id(x.untyped_storage()))
        assert mem.allocated()[0] == size * _KIB
        mem.free(x)
        mem.free(x)
        assert mem.allocated()[0] == 0
        del x
    assert len(storages) < 100  # places came again
    assert mem.freed()[0] == sum(range(1, 200)) * _KIB


def test_what_waits_is_settled_by_the_next_call_that_counts(mem):
    for _ in range(100):
        torch.empty(_KIB, dtype=torch.uint8)
    assert len(mem._accounts._dead) <= 1 and len(mem._accounts._entries) <= 1
    assert mem.freed()[0] == 100 * _KIB
    assert not mem._accounts._dead and not mem._accounts._entries


def test_threads_lose_none(mem):
    def work():
        for _ in range(300):
            torch.empty(_KIB, dtype=torch.uint8)
            mem.allocated()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (mem.allocated()[0], mem.freed()[0]) == (0, 1200 * _KIB)


def test_the_line_is_known_of_what_lived_before_it_was_asked_for(mem):
    before = torch.empty(_KIB, dtype=torch.uint8)
    mem.set_callsite_tracking(True)
    line = sys._getframe().f_lineno + 1
    del before
    torch.empty(1, dtype=torch.uint8)  # counts, elsewhere
    device, site, size = mem.top_free_site(_CPU)
    assert site.endswith(f"test_memlord_deaths.py:{line}") and size == _KIB
    mem.set_callsite_tracking(False)
    after = [torch.empty(_KIB, dtype=torch.uint8)]
    assert _codes(after.clear) == []
    assert not mem._accounts._lines


def test_a_tracker_goes_at_once_with_what_it_knows():
    mem = MemLord({}, track_callsite=True)
    kept = torch.empty(_KIB)
    mem.allocate(kept)
    known = weakref.ref(mem._accounts)
    gc.disable()
    try:
        del mem
        assert known() is None
    finally:
        gc.enable()
