# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.MemPool of the native allocator, on the simulated device."""

import ctypes
import gc
import os

import pytest

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

import torch  # pylint: disable=wrong-import-position

MIB = 1 << 20


def segments_of(pool):
    """Segments that belong to the pool, by what the snapshot says."""
    return [
        each for each in torch.cuda.memory_snapshot()
        if tuple(each["segment_pool_id"]) == tuple(pool.id)
    ]


@pytest.fixture(autouse=True)
def clean():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == 0
    assert device.used() == 0
    assert device.violations() == []


def test_allocations_land_in_the_pool():
    outside = torch.ones(MIB, device="cuda")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.arange(MIB, dtype=torch.float32, device="cuda")
        twice = inside * 2
    after = torch.zeros(MIB, device="cuda")
    (segment, *more) = segments_of(pool)
    spans = [(s["address"], s["address"] + s["total_size"])
             for s in (segment, *more)]

    def is_in(tensor):
        return any(a <= tensor.data_ptr() < b for a, b in spans)

    assert is_in(inside) and is_in(twice)
    assert not is_in(outside) and not is_in(after)
    assert torch.equal(twice.cpu(), torch.arange(MIB) * 2.0)
    assert {s["address"] for s in pool.snapshot()} == {a for a, _ in spans}


def test_memory_of_a_pool_stays_with_it():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    where = x.data_ptr()
    del x
    elsewhere = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert elsewhere.data_ptr() != where
    with torch.cuda.use_mem_pool(pool):
        again = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() == where
    assert pool.use_count() >= 1


def test_a_pool_gives_its_memory_back():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert device.used() == 32 * MIB
    del x
    torch.cuda.empty_cache()
    assert device.used() == 32 * MIB  # a living pool keeps it
    del pool
    torch.cuda.empty_cache()
    assert device.used() == 0


def test_tensors_outlive_their_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((MIB,), 7.0, device="cuda")
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    y = torch.ones(MIB, device="cuda")
    assert x.data_ptr() != y.data_ptr()
    assert torch.equal(x.cpu(), torch.full((MIB,), 7.0))


def test_no_split():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        large = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        del large
        small = torch.empty(12 * MIB, dtype=torch.uint8, device="cuda")
        other = torch.empty(12 * MIB, dtype=torch.uint8, device="cuda")
    for segment in segments_of(pool):
        assert len(segment["blocks"]) == 1
    assert len(segments_of(pool)) == 2
    del small, other


def test_use_on_oom():
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        reserve = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    where = reserve.data_ptr()
    del reserve
    # 56 MiB are left outside of the pool.
    wanted = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert where <= wanted.data_ptr() < where + 200 * MIB


def test_without_use_on_oom_the_pool_is_not_touched():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        reserve = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    del reserve
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")


def test_custom_allocator():
    path = os.path.abspath(os.path.join(
        os.environ.get("CUDASIM_NATIVE", "tests/simulator/cudasim/native"),
        "libcounting_allocator.so",
    ))
    counts = ctypes.CDLL(path)
    plugin = torch.cuda.memory.CUDAPluggableAllocator(
        path, "counting_alloc", "counting_free"
    )
    pool = torch.cuda.MemPool(plugin.allocator())
    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(4 * MIB, dtype=torch.int32, device="cuda")
        assert counts.counting_allocations() >= 1
        assert counts.counting_live_bytes() >= 16 * MIB
    before = counts.counting_allocations()
    outside = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    assert counts.counting_allocations() == before
    assert int(x.sum()) == 4 * MIB * (4 * MIB - 1) // 2 or x[-1] == 4 * MIB - 1
    del x, outside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert counts.counting_frees() == counts.counting_allocations()
    assert counts.counting_live_bytes() == 0


def test_two_pools_on_two_threads():
    import threading

    pools = [torch.cuda.MemPool() for _ in range(2)]
    found = [None, None]

    def work(i):
        with torch.cuda.use_mem_pool(pools[i]):
            found[i] = torch.full((MIB,), float(i), device="cuda")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for i, tensor in enumerate(found):
        (segment,) = segments_of(pools[i])
        start = segment["address"]
        assert start <= tensor.data_ptr() < start + segment["total_size"]
        assert torch.equal(tensor.cpu(), torch.full((MIB,), float(i)))


def storage_at(tensor_facts):
    """A tensor over memory that the allocator was told about again."""
    pointer, numel = tensor_facts
    storage = torch._C._construct_storage_from_data_pointer(
        pointer, torch.device("cuda", 0), numel * 4
    )
    tensor = torch.empty([0], device="cuda", dtype=torch.float32)
    tensor.set_(source=storage, storage_offset=0, size=(numel,), stride=(1,))
    return tensor


def test_checkpoint_of_a_pool():
    """What CUDA graph trees do: the pool goes back to what it once held."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        one = torch.full((MIB,), 1.0, device="cuda")
        two = torch.full((2 * MIB,), 2.0, device="cuda")
    facts = [(t.data_ptr(), t.numel()) for t in (one, two)]
    state = torch._C._cuda_getCheckpointState(0, pool.id)
    del one, two
    assert torch.cuda.memory_allocated() == 0
    back = [storage_at(each) for each in facts]
    torch._C._cuda_setCheckpointPoolState(
        0, state, [], [t.untyped_storage()._cdata for t in back]
    )
    assert torch.cuda.memory_allocated() == 12 * MIB
    with torch.cuda.use_mem_pool(pool):
        other = torch.zeros(MIB, device="cuda")
    assert other.data_ptr() not in [pointer for pointer, _ in facts]
    assert torch.equal(back[0].cpu(), torch.full((MIB,), 1.0))
    assert torch.equal(back[1].cpu(), torch.full((2 * MIB,), 2.0))
    back.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == 4 * MIB
    del other
