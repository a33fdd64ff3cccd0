# SPDX-License-Identifier: Apache-2.0
"""Methods of the allocator that torch 2.12 to 2.15 added."""

import ctypes
import gc
import os
import re

import pytest

from bazel import programs
from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

import torch

MIB = 1 << 20
MINOR = int(torch.__version__.split(".")[1])
cpp = ctypes.CDLL(os.path.abspath(
    os.path.join(os.environ.get("CUDASIM_NATIVE",
                                "tests/simulator/cudasim/native"),
                 "libcpp_only.so")))
memory = torch.cuda.memory


def since(minor):
    return pytest.mark.skipif(MINOR < minor,
                              reason=f"torch has it from 2.{minor} on")


@pytest.fixture(autouse=True)
def _nothing_left():
    torch.cuda.init()
    yield
    memory._record_memory_history(None)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0


def _make(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def _allocate_at(size, address):
    """(status, whether the pointer is a plain one, message)."""
    message, plain = ctypes.create_string_buffer(500), ctypes.c_int()
    code = cpp.allocate_at(ctypes.c_uint64(size), ctypes.c_uint64(address),
                           ctypes.byref(plain), message, len(message))
    return code, bool(plain.value), message.value.decode()


_REJECTED = """
import ctypes, os
from tests.simulator.cudasim.operator_bridge import simulated
device = simulated.load(memory="256MiB")
import torch
torch.cuda.init()
cpp = ctypes.CDLL(os.path.abspath("tests/simulator/cudasim/native/libcpp_only.so"))
cpp.observe_rejections(0)
cpp.observe_rejections(1)
MIB = 1 << 20
def make(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
def refusal(mib):
    try:
        make(mib)
    except torch.OutOfMemoryError as error:
        return str(error)
def counts():
    stats = torch.cuda.memory_stats()
    return stats["num_oom_rejections"], stats["num_ooms"]
held = make(120)
# The fraction that was set is native's first question: out of memory.
assert "Tried to allocate 50.00 MiB" in refusal(50), refusal(50)
assert counts() == (0, 1), counts()
torch.cuda.set_per_process_memory_fraction(1.0)
said = refusal(50)
assert ("CUDA out of memory. Allocation was preemptively rejected because it "
        "would exceed per_process_memory_fraction limit. Requested size: "
        "50.00 MiB") in said, said
assert counts() == (1, 1), counts()
seen = (ctypes.c_uint64 * 3)()
while cpp.rejections_seen(seen) < 2:  # native calls them on another thread
    os.sched_yield()
assert list(seen) == [50 * MIB, 120 * MIB, 256 * MIB], list(seen)
kept = torch.empty(1000, device="cuda")  # below it
torch.cuda.reset_accumulated_memory_stats()
assert counts() == (0, 0)
torch._C._accelerator_setAllocatorSettings("throw_on_cudamalloc_oom:False")
more = make(50)
"""


@since(12)
def test_request_beyond_the_fraction_is_rejected():
    done = programs.run(
        "-c", _REJECTED, merged=True, fresh=True,
        env={**os.environ, "PYTORCH_ALLOC_CONF":
             "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5"})
    assert done.returncode == 0, done.stdout
    assert "throw_on_cudamalloc_oom" in done.stdout.splitlines()[0]
    assert "an observer's own" in done.stdout


@since(12)
def test_traceback_of_an_allocation_is_where_it_was_asked_for():
    older = _make(1000)
    memory._record_memory_history(context="all", stacks="python")
    block = _make(1000)
    address = block.data_ptr()
    frames = memory._allocation_traceback(address)
    assert frames[0]["name"] == "_make" and frames[0]["filename"] == __file__
    for unknown in (older.data_ptr(), address + 512, 0, 12):
        assert memory._allocation_traceback(unknown) is None
    del block
    assert memory._allocation_traceback(address) is None


@since(13)
def test_reserved_bytes_of_private_pools_are_counted_by_pool():
    def counted():
        return torch.cuda.memory_stats_as_nested_dict().get(
            "reserved_bytes_by_private_pools", {})

    before = set(counted())
    pool = memory.MemPool()
    with memory.use_mem_pool(pool):
        small, large = _make(512), _make(20 * MIB)
    assert set(counted()) - before == {pool.id}
    mine = counted()[pool.id]
    segments = [s for s in torch.cuda.memory_snapshot()
                if s["segment_pool_id"] == pool.id]
    sizes = {kind: sum(s["total_size"] for s in segments
                       if s["segment_type"] == kind)
             for kind in ("small", "large")}
    assert mine["small_pool"]["current"] == sizes["small"] > 0
    assert mine["large_pool"]["current"] == sizes["large"] >= 20 * MIB
    assert mine["all"]["peak"] == sum(sizes.values())
    name = pool.id
    flat = torch.cuda.memory_stats()
    assert flat["reserved_bytes_by_private_pools.%d_%d.all.current" % name] == (
        sum(sizes.values()))
    del small, large, pool
    gc.collect()
    torch.cuda.empty_cache()
    gone = counted()[name]["all"]  # it stays, as the counters of the device do
    assert gone["current"] == 0 and gone["freed"] == gone["allocated"] > 0
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert counted()[name]["all"] == dict.fromkeys(
        ("allocated", "current", "freed", "peak"), 0)


@since(13)
def test_block_at_an_address_is_cut_out_of_what_is_cached():
    block = _make(512 * 1024)
    base = block.data_ptr()
    del block
    before = torch.cuda.memory_stats()
    memory._record_memory_history(context=None)
    assert _allocate_at(1000, base + 4096) == (0, True, "")
    after = torch.cuda.memory_stats()
    assert after["allocated_bytes.all.current"] == 1024
    assert after["requested_bytes.all.current"] == 1000
    # The part in front is handed out and freed at once.
    assert (after["allocation.all.allocated"]
            == before["allocation.all.allocated"] + 2)
    assert after["reserved_bytes.all.current"] == (
        before["reserved_bytes.all.current"])
    (live,) = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]
               if b["state"] == "active_allocated"]
    assert (live["address"], live["size"]) == (base + 4096, 1024)
    trace = memory._snapshot()["device_traces"][0]
    seen = [(e["action"], e["addr"] - base, e["size"]) for e in trace
            if e["action"] != "snapshot"]
    assert seen == [("alloc", 0, 4096), ("alloc", 4096, 1000),
                    ("free_requested", 0, 4096), ("free_completed", 0, 4096)]
    if MINOR >= 15:
        assert {e["internal_metadata"] for e in trace
                if e["action"] != "snapshot"} == {"mallocWithAddress"}
    cpp.free_at(ctypes.c_uint64(base + 4096))
    last = [e for e in memory._snapshot()["device_traces"][0]
            if e["action"] == "free_completed"][-1]
    assert last["addr"] == base + 4096 and "internal_metadata" not in last


@since(13)
def test_block_at_an_address_that_cannot_be_had_raises():
    block = _make(512 * 1024)
    base = block.data_ptr()
    reserved = torch.cuda.memory_reserved()
    taken = f"Could not allocate CUDA storage at exact address {base:#x}"
    assert taken in _allocate_at(1000, base)[2]  # it is in use
    del block
    code, _, text = _allocate_at(1000, base + 1)
    assert code == 1
    assert "addr must be aligned to kMinBlockSize (512 bytes), got" in text
    for size, address in ((100, 4096), (MIB + 1, base), (100 * MIB, base)):
        code, _, text = _allocate_at(size, address)
        assert code == 1 and "Could not allocate CUDA storage" in text
    with torch.cuda.stream(torch.cuda.Stream()):  # another stream's memory
        assert _allocate_at(1000, base)[0] == 1
    assert _allocate_at(0, base) == (0, True, "")
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.memory_allocated() == 0


@since(14)
def test_annotation_is_an_event_of_the_block():
    memory._record_memory_history(context="all", stacks="python")
    block = _make(1000)
    memory._set_memory_metadata("the thread's")
    memory._annotate_tensor(block[100:], "packed")
    memory._set_memory_metadata("")
    before = torch.cuda.memory_stats()
    (event,) = [e for e in memory._snapshot()["device_traces"][0]
                if e["action"] == "annotate"]
    assert event["addr"] == block.data_ptr() and event["size"] == 1000
    assert event["user_metadata"] == "packed"
    assert event["frames"][0]["name"] == "_annotate_tensor"
    assert torch.cuda.memory_stats() == before
    memory._record_memory_history(None)
    memory._annotate_tensor(block, "nothing records")


@since(14)
def test_annotation_of_no_block_raises():
    block = _make(1000)
    for address in (0, 12, block.data_ptr() + 512):
        with pytest.raises(RuntimeError, match=re.escape(
                "annotateMemory: no live allocation found at pointer")):
            torch._C._cuda_annotateMemory(address, "x")


@since(14)
def test_metadata_is_supported_and_may_be_a_dict():
    assert torch._C._cuda_memoryMetadataSupported()
    memory._record_memory_history(context=None)
    memory._set_memory_metadata({"step": 3} if MINOR >= 15 else '{"step":3}')
    block = _make(1000)
    memory._set_memory_metadata("")
    (event,) = [e for e in memory._snapshot()["device_traces"][0]
                if e["action"] == "alloc"]
    assert event["user_metadata"] == '{"step":3}'
    del block


@since(14)
def test_snapshot_has_the_pinned_host_memory():
    memory._record_memory_history(context=None, record_pinned_host_memory=True)
    held = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    snapshot = memory._snapshot()
    addresses = {segment["address"] for segment in snapshot["host_segments"]}
    assert held.data_ptr() in addresses
    assert [e["action"] for e in snapshot["host_traces"]
            if e["addr"] == held.data_ptr()]


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
