# SPDX-License-Identifier: Apache-2.0
"""Labels in the history, who follows it, and what a pool has alive: the same
under both."""

import ctypes
import os

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import torch


def test_annotations_and_compile_contexts():
    torch.cuda.memory._record_memory_history(
        compile_context=True, global_record_annotations=True
    )
    with torch.profiler.record_function("a step"):
        x = torch.ones(1000, device="cuda")

    @torch.compile(backend="eager")
    def plus_one(x):
        return x + 1

    y = plus_one(x)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    said = [
        (each["stage"], each["name"], each["device"])
        for each in snapshot["external_annotations"]
        if each["name"] == "a step"
    ]
    assert said == [("START", "a step", 0), ("END", "a step", 0)]
    labels = {
        each["addr"]: each["compile_context"]
        for each in snapshot["device_traces"][0]
        if each["action"] == "alloc"
    }
    assert labels[x.data_ptr()] == "N/A"
    assert labels[y.data_ptr()].startswith("Torch-Compiled Region")


def test_live_allocations_of_a_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        one = torch.ones(1000, device="cuda")
        two = torch.ones(3 << 20, device="cuda")
    outside = torch.ones(10, device="cuda")

    def alive(*tensors):
        return torch._C._cuda_checkPoolLiveAllocations(
            0, pool.id, {each.data_ptr() for each in tensors}
        )

    assert alive(one, two)
    assert not alive(one)
    assert not alive(one, two, outside)
    del two
    assert alive(one)


def test_trackers_hear_of_every_event():
    """History is off; nothing takes a tracker away again, so this is last."""
    folder = os.environ.get("CUDASIM_NATIVE", "tests/simulator/cudasim/native")
    cpp = ctypes.CDLL(os.path.abspath(folder + "/libcpp_only.so"))
    cpp.tracked_address.restype = cpp.tracked_bytes.restype = ctypes.c_uint64
    alloc, requested, completed = 0, 1, 2  # TraceEntry::Action
    given_back = (4, 6)  # a segment freed or unmapped
    torch.cuda.empty_cache()
    cpp.track()
    for trackers in (1, 2):
        before = [cpp.tracked(action) for action in range(9)]

        def told(action, before=before):
            return cpp.tracked(action) - before[action]

        x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        assert told(alloc) == trackers
        assert cpp.tracked_address() == x.data_ptr()
        assert cpp.tracked_bytes() == 3 << 20
        del x
        assert told(alloc) == told(requested) == told(completed) == trackers
        torch.cuda.empty_cache()
        assert sum(map(told, given_back)) >= trackers
        cpp.track()
