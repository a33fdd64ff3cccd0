# SPDX-License-Identifier: Apache-2.0
"""Labels in the history, and what a pool has alive: the same under both."""

from tests.cudasim.operator_bridge import simulated

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
