# SPDX-License-Identifier: Apache-2.0
"""The allocator object as torch sees it, over the real core: what no test of
PyTorch's own features (tests/simulator/cudasim/native) asks it for."""

import os

os.environ["PYTORCH_ALLOC_CONF"] = "per_process_memory_fraction:0.75"

from stratalloc import simulate

simulate.load("256MiB")

# pylint: disable=wrong-import-position
import ctypes

import pytest
import stratalloc
import torch
from stratalloc._native import bridge as _bridge

from python_shim.testing.let_go import let_go

assert stratalloc.enable(host_budget="64MiB", disk_budget=0)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go(empty_cache=True)


def make(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_init_applies_the_options():
    # The first test: CUDA begins here, with what the environment said.
    torch.cuda.init()
    assert torch.cuda.get_per_process_memory_fraction() == 0.75
    made = [make(8 * MIB) for _ in range(20)]
    stratalloc.pin(made)
    with pytest.raises(torch.OutOfMemoryError, match="The memory fraction "
                       "allows 192.00 MiB of the card, and pinned tensors hold "
                       "160.00 MiB: raise it"):
        make(40 * MIB)
    stratalloc.unpin(made)
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_initialized_refuses_another_allocator():
    make(1)
    with pytest.raises(RuntimeError, match="already initialized"):
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator(
                stratalloc.library(), "stratalloc_malloc", "stratalloc_free"
            )
        )
    assert stratalloc.is_enabled()


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * MIB])
def test_the_deleter_is_one_bare_function(size):
    message = ctypes.create_string_buffer(1000)
    assert _bridge.lib().stratalloc_torch_deleter_is_plain(
        ctypes.c_uint64(size), message, len(message)
    ), message.value
    tensor = make(size)
    assert torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata)


def test_going_back_says_what_it_freed():
    """CUDA graph trees name the tensors of the branch that they leave, and
    torch takes the deleters of those that the allocator says it freed."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = make(2 * MIB)
        state = torch._C._cuda_getCheckpointState(0, pool.id)
        later = make(4 * MIB)
    storage = later.untyped_storage()._cdata
    assert torch._C._has_Standard_Deleter(storage)
    torch._C._cuda_setCheckpointPoolState(0, state, [storage], [])
    assert torch.cuda.memory_allocated() == 2 * MIB
    assert not torch._C._has_Standard_Deleter(storage)
    del later
    assert torch.cuda.memory_allocated() == 2 * MIB
    del kept


def test_copy_data_where_the_source_is_away():
    first = torch.arange(1 << 18, dtype=torch.float32, device="cuda")
    second = torch._lazy_clone(first)
    assert torch._C._data_address(first) == torch._C._data_address(second)
    torch.cuda.synchronize()
    assert stratalloc.evict() > 0
    second.add_(1)  # now they part, outside of any operator
    assert torch._C._data_address(first) != torch._C._data_address(second)
    assert first[-1].item() == (1 << 18) - 1
    assert second[0].item() == 1 and second[-1].item() == 1 << 18


def test_raw_memory_on_a_stream_of_its_own():
    side = torch.cuda.Stream()
    before = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(5 * MIB, stream=side)
    (segment,) = [
        each for each in torch.cuda.memory_snapshot()
        if each["address"] <= pointer < each["address"] + each["total_size"]
    ]  # fmt: skip
    assert segment["stream"] == side.cuda_stream
    assert torch.cuda.memory_allocated() == before + 5 * MIB
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(pointer)


def largest_free():
    """By the snapshot: of all pools, in bytes that are on the device."""
    return max(
        (block["size"] for segment in torch.cuda.memory_snapshot()
         for block in segment["blocks"] if block["state"] == "inactive"),
        default=0,
    )  # fmt: skip


def cache_info(start=1):
    largest = ctypes.c_uint64(start)
    _bridge.call("cache_info", 0, ctypes.byref(largest))
    return largest.value


def test_cache_info_is_the_largest_free_block_of_all_pools():
    torch.cuda.empty_cache()
    assert cache_info() == max(1, largest_free())
    side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    kept = [make(1000)]
    assert 0 < cache_info() == largest_free() < 2 * MIB  # the small pool's rest
    for size, where in ((6 * MIB, torch.cuda.stream(side)),
                        (11 * MIB, torch.cuda.use_mem_pool(pool))):  # fmt: skip
        with where:
            freed, rest = make(size), make(size // 2)
        kept.append(rest)  # so that what is freed ends at it
        del freed
        assert cache_info() == largest_free() >= size
    # Larger than any: what the caller knew; 0: what the driver has free.
    assert cache_info(100 * MIB) == 100 * MIB
    assert cache_info(0) == torch.cuda.mem_get_info()[0] > 100 * MIB
    del kept, rest, pool


def test_statistics_are_the_sums_of_the_snapshot():
    small = [make(1000 * i) for i in range(1, 9)]
    large = [make(3 * MIB + i) for i in range(4)]
    del small[::2], large[1]
    waits = make(2 * MIB)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        waits.fill_(1)
    waits.record_stream(side)
    del waits
    stats = torch._C._cuda_memoryStats(0)
    sums = {}
    for segment in torch.cuda.memory_snapshot():
        for kind in ("all", segment["segment_type"] + "_pool"):
            for name, value in (
                ("reserved_bytes", segment["total_size"]),
                ("allocated_bytes", segment["allocated_size"]),
                ("active_bytes", segment["active_size"]),
                ("requested_bytes", segment["requested_size"]),
                ("allocation", sum(block["state"] == "active_allocated"
                                   for block in segment["blocks"])),
                ("active", sum(block["state"] != "inactive"
                               for block in segment["blocks"])),
            ):  # fmt: skip
                sums[name, kind] = sums.get((name, kind), 0) + value
    assert sums["allocated_bytes", "small_pool"] > 0
    assert sums["allocated_bytes", "large_pool"] > 9 * MIB
    for (name, kind), value in sums.items():
        one = stats[name][kind]
        assert one["current"] == value, (name, kind)
        assert one["current"] == one["allocated"] - one["freed"]
        assert one["peak"] >= one["current"]
    torch.cuda.reset_accumulated_memory_stats()
    again = torch._C._cuda_memoryStats(0)
    for (name, kind), value in sums.items():
        one = again[name][kind]
        assert (one["current"], one["allocated"], one["freed"]) == (value, 0, 0)
    del small, large
