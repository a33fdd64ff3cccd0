# SPDX-License-Identifier: Apache-2.0
"""The allocator's settings do on the simulated device what they say, changed at
run time too.

Those read once, at the first allocation, get a process of their own. What ours
does otherwise is in python_shim/torch_bridge/OPTIONS.md: where it maps memory
by handles (MAPPED), the rules about segments that come and go whole mean
nothing.
"""

import gc
import os
import textwrap

import pytest

from bazel import programs
from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

import torch  # pylint: disable=wrong-import-position

MIB = 1 << 20
OURS = simulated.allocator() == "stratalloc"
PLAIN = os.environ.get("CUDASIM_VMM") == "off"
MAPPED = OURS and not PLAIN
START = """
import gc, os, sys
import ctypes
from tests.simulator.cudasim.operator_bridge import simulated
device = simulated.load(memory="256MiB")
import torch
MIB = 1 << 20
OURS = simulated.allocator() == "stratalloc"
PLAIN = os.environ.get("CUDASIM_VMM") == "off"
def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
"""


def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def child(script, fresh=False, **environment):
    """Runs it after loading the device; returns exit status and output."""
    done = programs.run("-c", START + textwrap.dedent(script), fresh=fresh,
                        env={**os.environ, **environment}, merged=True)
    return done.returncode, done.stdout


@pytest.fixture(params=["accelerator", "cuda"])
def setting(request):
    """Sets options at run time, by either of torch's functions."""
    yield {
        "accelerator": torch._C._accelerator_setAllocatorSettings,
        "cuda": torch.cuda.memory._set_allocator_settings,
    }[request.param]
    torch._C._accelerator_setAllocatorSettings(
        "max_split_size_mb:1000000,garbage_collection_threshold:0.999,"
        "roundup_power2_divisions:1,large_segment_size_mb:20,"
        "max_non_split_rounding_mb:20"
    )
    gc.collect()
    torch.cuda.empty_cache()
    assert device.used() == 0


def test_max_split_size(setting):
    x = make(100)
    del x
    y = make(40)
    assert device.used() == 100 * MIB  # cut from the 100
    del y
    torch.cuda.empty_cache()
    setting("max_split_size_mb:30")
    # Native forgets none while the limit is another one.
    before = torch.cuda.memory_stats()["oversize_segments.current"]
    x = make(100)
    assert torch.cuda.memory_stats()["oversize_allocations.current"] == 1
    del x
    assert torch.cuda.memory_stats()["oversize_allocations.current"] == 0
    y = make(40)
    # The 100 may not be cut; but what is mapped may be mapped elsewhere.
    assert device.used() == (100 if MAPPED else 140) * MIB
    stats = torch.cuda.memory_stats()
    assert stats["oversize_allocations.current"] == 1
    assert stats["oversize_allocations.allocated"] >= 2
    assert stats["oversize_segments.current"] == before + (0 if MAPPED else 2)
    del y


def test_max_non_split_rounding(setting):
    setting("max_split_size_mb:30,max_non_split_rounding_mb:20")
    x = make(100)
    del x
    torch.cuda.empty_cache()
    setting("max_split_size_mb:30,max_non_split_rounding_mb:70")
    x = make(100)
    del x
    y = make(40)  # of a segment that is larger by less than 70
    assert device.used() == 100 * MIB
    assert torch.cuda.memory_allocated() == (40 if MAPPED else 100) * MIB
    del y


def test_large_segment_size(setting):
    x = make(3)
    assert device.used() == (4 if MAPPED else 20) * MIB
    del x
    torch.cuda.empty_cache()
    setting("large_segment_size_mb:40")
    x = make(3)
    assert device.used() == (4 if MAPPED else 40) * MIB
    del x


def test_what_is_reported(setting):
    setting("roundup_power2_divisions:8,garbage_collection_threshold:0.7,"
            "max_split_size_mb:64,graph_capture_record_stream_reuse:True,"
            "release_lock_on_cudamalloc:True")
    values = torch.cuda.memory._snapshot()["allocator_settings"]
    setting("graph_capture_record_stream_reuse:False,"
            "release_lock_on_cudamalloc:False")
    assert values["garbage_collection_threshold"] == 0.7
    assert values["max_split_size"] == 64 * MIB
    assert values["graph_capture_record_stream_reuse"] is True
    assert values["release_lock_on_cudamalloc"] is True
    assert set(values["roundup_power2_divisions"].values()) == {8}


def test_roundup_power2_divisions(setting):
    setting("roundup_power2_divisions:4")
    x = torch.empty(MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == MIB + MIB // 4
    del x
    x = torch.empty(5 * MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 6 * MIB
    del x


def test_garbage_collection(setting):
    setting("garbage_collection_threshold:0.5")
    torch.cuda.set_per_process_memory_fraction(0.99)  # 1 would be no limit
    for mib in (30, 50, 70):
        x = make(mib)
        del x
    # 150 of 256 MiB are cached, more than half: the oldest go first. Mapped
    # memory is stitched together, there is nothing to collect.
    x = make(90)
    assert device.used() == (90 if MAPPED else 160) * MIB
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
    del x


def test_bad_settings_are_refused(setting):
    for text in ("max_split_size_mb:1", "garbage_collection_threshold:2",
                 "no_such_setting:1"):
        with pytest.raises(ValueError):
            setting(text)


def test_without_caching():
    code, output = child(
        """
        x = make(10)
        assert device.used() == 10 * MIB
        del x
        gc.collect()
        assert device.used() == 0
        y = torch.ones(1000, device="cuda")
        assert device.used() == 2 * MIB
        assert float((y + y).sum()) == 2000
        del y
        gc.collect()
        assert device.used() == 0 and device.violations() == []
        """,
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    assert code == 0, output


def test_expandable_segments():
    code, output = child(
        """
        def segments():
            return torch.cuda.memory_snapshot()

        torch.cuda.memory._record_memory_history("all", stacks="python")
        x = make(20)
        (segment,) = segments()
        assert segment["is_expandable"] != PLAIN
        if PLAIN:  # without virtual memory it means nothing to ours
            raise SystemExit(0)
        assert device.used() == torch.cuda.memory_reserved()
        start = segment["address"]
        y = make(40)
        (segment,) = segments()       # the same one, longer
        assert segment["address"] == start
        assert segment["total_size"] >= 60 * MIB
        assert y.data_ptr() == x.data_ptr() + 20 * MIB
        y.fill_(3)
        assert int(y.sum(dtype=torch.int64)) == 120 * MIB
        actions = [
            each["action"]
            for each in torch.cuda.memory._snapshot()["device_traces"][0]
        ]
        assert actions.count("segment_map") >= 2, actions
        del x                         # a hole at the beginning
        torch.cuda.empty_cache()
        assert device.used() == torch.cuda.memory_reserved() <= 40 * MIB
        z = make(180)                 # fits only with the hole's pages
        assert device.used() <= 256 * MIB
        del z
        # Cached pages are unmapped when an allocation does not fit.
        small = [make(20) for _ in range(8)]
        del small[::2]
        free = device.capacity() - device.used()
        assert free < 100 * MIB
        large = make(90)
        # Ours moves pages that nobody uses before it comes to a retry.
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        assert OURS or retries >= 1
        actions = [
            each["action"]
            for each in torch.cuda.memory._snapshot()["device_traces"][0]
        ]
        assert "segment_unmap" in actions
        del y, small, large
        torch.cuda.memory._record_memory_history(None)
        gc.collect()
        torch.cuda.empty_cache()
        assert device.used() == 0, device.used()
        assert device.violations() == []
        # Out of memory leaves it usable.
        try:
            make(400)
            raise SystemExit("400 MiB of 256 were given out")
        except torch.OutOfMemoryError:
            pass
        x = make(100)
        """,
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert code == 0, output


def test_pools_on_expandable_segments():
    code, output = child(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = make(30)
        assert tuple(torch.cuda.memory_snapshot()[0]["segment_pool_id"]) == (
            tuple(pool.id))
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
        assert device.used() == 0, device.used()
        """,
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert code == 0, output


def test_the_asynchronous_backend():
    code, output = child(
        """
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        x = make(30)
        x.fill_(2)
        assert int(x.sum(dtype=torch.int64)) == 60 * MIB
        assert torch.cuda.memory_allocated() >= 30 * MIB
        del x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == 0
        assert device.used() == 0, device.used()
        try:
            make(400)
            raise SystemExit("400 MiB of 256 were given out")
        except torch.OutOfMemoryError:
            pass
        assert device.violations() == []
        """,
        fresh=True,  # the import of torch reads it
        PYTORCH_ALLOC_CONF="backend:cudaMallocAsync",
    )
    if OURS:
        assert code != 0
        assert "torch's CUDA allocator is already 'cudaMallocAsync'" in output
        return
    assert code == 0, output


def test_pinned_memory_by_registration():
    code, output = child(
        """
        x = torch.arange(MIB).pin_memory()
        assert x.is_pinned()
        assert torch.equal(x.cuda(non_blocking=True).cpu(), torch.arange(MIB))
        """,
        PYTORCH_ALLOC_CONF="pinned_use_cuda_host_register:True,"
        "pinned_num_register_threads:2",
    )
    assert code == 0, output
