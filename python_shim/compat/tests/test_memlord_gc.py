# SPDX-License-Identifier: Apache-2.0
"""When MemLord collects, of which device, and who watches how full it is."""

import gc
import os
import threading

from stratalloc import simulate

simulate.load("64MiB", devices=2)

# pylint: disable=wrong-import-position
import pytest  # noqa: E402
import torch  # noqa: E402

from stratalloc.compat import _devices  # noqa: E402
from stratalloc.compat.memlord import MemLord, _collection, _usage  # noqa: E402

gc.freeze()  # what was imported is no garbage: collections are quick
_MIB = 1 << 20
_CPU = torch.device("cpu")
_CUDA0, _CUDA1 = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(name="collected")
def _collected(monkeypatch):
    """Devices that were collected, and who was not."""
    found = []
    monkeypatch.setattr(_collection, "collect", found.append)
    return found


def _full(mem, percent, total=100 * _MIB):
    mem._device_memory_stats = lambda device: (
        total, int(total * percent / 100), percent)


def _mib(count, device=_CPU):
    return torch.empty(count * _MIB, dtype=torch.uint8, device=device)


# What a strategy may be


@pytest.mark.parametrize("strategy, named", [
    (7, "7"),
    ({"all": {}}, "'all'"),
    ({(50, 50): {}}, r"\(50, 50\)"),
    ({(-1, 50): {}}, r"\(-1, 50\)"),
    ({(0, float("nan")): {}}, "nan"),
    ({(0, True): {}}, "True"),
    ({(0, 9): 3}, "3, and no dict"),
    ({(0, 9): {"metric": "max"}}, "lacks 'threshold'"),
    ({(0, 9): {"metric": "used", "threshold": {"bytes": 1}}}, "'used'"),
    ({(0, 9): {"metric": "max", "threshold": {}}}, "empty"),
    ({(0, 9): {"metric": "max", "threshold": {"byts": 1}}}, "'byts'"),
    ({(0, 9): {"metric": "max", "threshold": {"bytes": 1}, "on": 1}}, "'on'"),
    ({(0, 9): {"metric": "max", "threshold": {"bytes": 1.5}}}, "1.5"),
    ({(0, 9): {"metric": "max", "threshold": {"percent": -3}}}, "-3"),
])
def test_a_wrong_strategy_is_refused_and_named(strategy, named, collected):
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}})
    _full(mem, 10)
    with pytest.raises(ValueError, match=named):
        mem.set_auto_gc_strategy(strategy)
    with pytest.raises(ValueError, match=named):
        MemLord(strategy)
    mem.free(_mib(1))
    assert collected == [_CPU]  # the one before stays


# When


def test_the_default_has_three_bands_and_nothing_none(collected):
    for percent, most in ((0, 50), (49.9, 50), (50, 33), (74, 33), (75, 25),
                          (100, 25)):
        mem = MemLord()
        _full(mem, percent)
        mem.free(_mib(most - 1))
        assert not collected
        mem.free(_mib(1))
        assert collected == [_CPU]
        collected.clear()
    mem = MemLord({})
    _full(mem, 99)
    mem.free(_mib(100))
    assert not collected


def test_the_larger_of_bytes_and_percent_counts(collected):
    mem = MemLord({(0, 60): {"metric": "freed", "threshold": {
        "bytes": 5 * _MIB, "percent": 2}}, (60, 101): {
            "metric": "freed", "threshold": {"bytes": 1, "percent": 7.0}}})
    for percent, most in ((59.9, 5), (60, 7)):
        _full(mem, percent)
        mem.free(_mib(most - 1))
        assert not collected
        mem.free(_mib(1))
        assert collected.pop() == _CPU and mem.freed() == (0, "0 B")


def test_a_device_is_collected_alone(collected):
    mem = MemLord({(0, 101): {"metric": "max", "threshold": {"percent": 4}}})
    _full(mem, 30)
    mem.free((_mib(3, _CUDA0), _mib(4, _CUDA1)))
    assert collected == [_CUDA1]
    assert mem.freed(_CUDA0)[0] == 3 * _MIB and mem.freed(_CUDA1)[0] == 0


def test_a_collection_gives_back_one_cards_cache():
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {
        "bytes": 4 * _MIB}}})
    _full(mem, 30)
    for device in (_CUDA0, _CUDA1):
        _mib(8, device)  # cached
    reserved = [torch.cuda.memory_reserved(i) for i in (0, 1)]
    mem.free(_mib(4, _CUDA1))
    assert torch.cuda.memory_reserved(0) == reserved[0] > 0
    assert torch.cuda.memory_reserved(1) < reserved[1]


def test_allocated_collects_once_and_again_when_it_has_grown(collected):
    mem = MemLord({(0, 101): {"metric": "allocated",
                              "threshold": {"bytes": 8 * _MIB}}})
    _full(mem, 30)
    held = [_mib(1) for _ in range(11)]
    for each in held[:8]:
        mem.allocate(each)
    assert len(collected) == 1
    mem.allocate(held[8])
    assert len(collected) == 1
    mem.allocate(held[9])  # a quarter more
    assert len(collected) == 2
    mem.free(held[9])
    assert len(collected) == 2
    mem.free(held[7:9])  # below
    mem.allocate(held[7])
    assert len(collected) == 3


def test_pressure_has_bytes_in_its_last_band(collected):
    mem = MemLord(auto_gc_strategy={
        (0, 60): {"metric": "max", "threshold": {"percent": 40}},
        (60, 85): {"metric": "max", "threshold": {"percent": 25}},
        (85, 101): {"metric": "freed", "threshold": {"bytes": 256 * 1024**2}},
    })
    _full(mem, 85, total=1000 * _MIB)
    mem.allocate(held := [_mib(255), _mib(1)])
    mem.free(held[0])
    assert not collected
    mem.free(held[1])
    assert collected == [_CPU]


def test_legacy_share_is_one_band(collected):
    mem = MemLord({})
    _full(mem, 30)
    mem.set_auto_gc_strategy(
        {(0, 101): {"metric": "max", "threshold": {"percent": 33.0}}})
    mem.free(_mib(33))
    mem.set_auto_gc_strategy(None)
    mem.free(_mib(49))
    assert len(collected) == 1


def test_a_death_collects_nothing_by_itself(collected):
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}})
    _full(mem, 30)
    with mem.hook_into_python():
        x = _mib(2)
        del x
        assert not collected
        x = torch.empty(1)  # whatever comes next
    assert collected == [_CPU]
    del x


def test_a_collection_frees_garbage_and_begins_no_other(monkeypatch):
    calls = []
    collect = _collection.collect
    monkeypatch.setattr(_collection, "collect", lambda device: (
        calls.append(device), collect(device)))
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}})
    _full(mem, 30)
    gc.disable()
    try:
        with mem.hook_into_python():
            freed = _mib(1, _CUDA0)  # lives on: its memory is not given back
            cycle = [_mib(8, _CUDA0)]
            cycle.append(cycle)
            del cycle
            assert mem.allocated(_CUDA0)[0] == 9 * _MIB
            reserved = torch.cuda.memory_reserved(0)
            mem.free(freed)
            assert mem.allocated(_CUDA0)[0] == 0
    finally:
        gc.enable()
    assert calls == [_CUDA0]
    assert torch.cuda.memory_reserved(0) < reserved
    assert torch.cuda.current_device() == 0


# Pollers


def _threads():
    return sorted(each.name for each in threading.enumerate()
                  if each.name.startswith("memlord "))


def test_one_thread_per_device_begins_at_the_first_question():
    before = len(os.listdir("/proc/self/fd"))
    x, y = _mib(1, _CUDA1), _mib(1)
    one, two = MemLord(), MemLord()
    one.allocate(())
    assert _threads() == []
    one.free(x)
    assert _threads() == ["memlord cuda:1"]
    two.free(x)
    two.free(y)
    two.free((x, y))
    assert _threads() == ["memlord cpu:0", "memlord cuda:1"]
    del one
    assert _threads() == ["memlord cpu:0", "memlord cuda:1"]
    del two
    assert _threads() == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_poller_says_what_is_in_use():
    mem = MemLord({})
    x = [_mib(8, _CUDA0), torch.empty(9, device=_CUDA0)]
    assert torch.cuda.memory_reserved(0) > torch.cuda.memory_allocated(0)
    total, used, percent = mem._device_memory_stats(_CUDA0)
    assert total == 64 * _MIB
    assert used == torch.cuda.memory_reserved(0) >= 8 * _MIB
    assert percent == 100 * used / total
    assert _devices.memory(0) == (torch.cuda.memory_allocated(0), used, total)
    read = threading.Event()
    poller, = [each for each in threading.enumerate()
               if each.name == "memlord cuda:0"]
    del x
    torch.cuda.empty_cache()

    def stats(key, asked=_usage.read):
        found = asked(key)
        read.set()
        return found

    original, _usage.read = _usage.read, stats
    try:
        assert read.wait(30)
        # What was read is the answer when the next one begins.
        read.clear()
        assert read.wait(30)
        assert mem._device_memory_stats(_CUDA0) == poller.last
        assert poller.last[1] == torch.cuda.memory_reserved(0) < used
    finally:
        _usage.read = original
    total, used, percent = mem._device_memory_stats(_CPU)
    assert 0 < used < total and 0 < percent < 100
    assert mem._device_memory_stats(torch.device("meta")) == _usage.UNKNOWN
