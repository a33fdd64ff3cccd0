# SPDX-License-Identifier: Apache-2.0
"""One program with everything that a snapshot can hold, and a checkpoint.

    python -m tests.system.differential.snapshot_worker OUTPUT

Pickles {"snapshot", "facts", "checkpoint"}: see snapshot_test.py.
"""

import pickle
import sys

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import torch

MIB = 1 << 20
NOT_READY = 600  # cudaErrorNotReady


# Frames tell where something was asked for: a function for each.
def make_small():
    return torch.empty(1000, dtype=torch.uint8, device="cuda")


def make_small_again():
    return torch.empty(2001, dtype=torch.uint8, device="cuda")


def make_large():
    return torch.empty(3 * MIB + 5, dtype=torch.uint8, device="cuda")


def make_on_a_stream(stream):
    with torch.cuda.stream(stream):
        return torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")


def make_in_a_pool(pool):
    with torch.cuda.use_mem_pool(pool):
        return torch.empty(12 * MIB, dtype=torch.uint8, device="cuda")


def make_too_large():
    try:
        torch.empty(300 * MIB + 3, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass


def capture(pool):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        made = torch.zeros(MIB, device="cuda")
    return graph, made


def snapshot():
    """The snapshot, and what the program knows that it must say."""
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *numbers: seen.append(numbers)
    )
    before = make_small_again()  # no context: history is off
    torch.cuda.memory._record_memory_history(
        "all", stacks="python", global_record_annotations=True
    )
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    pool, of_graph = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.profiler.record_function("the first part"):
        small, large = make_small(), make_large()
    torch.cuda.memory._set_memory_metadata("a label")
    on_a_stream = make_on_a_stream(stream)
    torch.cuda.memory._set_memory_metadata("")
    in_a_pool = make_in_a_pool(pool)
    graph, captured = capture(of_graph)
    make_too_large()
    # Freed, but another stream still uses it: active_pending_free.
    pending = make_on_a_stream(stream)
    device.cuda.cudasim_fail(b"cudaEventQuery", 1, NOT_READY, 1)
    pending.record_stream(other)
    del pending
    del small
    again = make_small_again()
    result = torch.cuda.memory._snapshot()
    device.cuda.cudasim_clear_faults()
    facts = {
        "pools": [pool.id, of_graph.id],
        "streams": [0, stream.cuda_stream, other.cuda_stream],
        "observed": seen,
        "reserved": torch.cuda.memory_reserved(),
        "used": device.used(),
    }
    torch.cuda.memory._record_memory_history(None)
    del before, large, on_a_stream, in_a_pool, graph, captured, again
    del pool, of_graph
    return result, facts


def storage_at(pointer, size):
    storage = torch._C._construct_storage_from_data_pointer(
        pointer, torch.device("cuda", 0), size
    )
    tensor = torch.empty([0], device="cuda", dtype=torch.uint8)
    return tensor.set_(storage, 0, (size,), (1,))


def checkpoint():
    """Statistics around going back, and the free blocks of the checkpoint."""
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [
            torch.empty(size, dtype=torch.uint8, device="cuda")
            for size in (700, 3 * MIB + 1, 30000, 11 * MIB + 77)
        ]
        del kept[1]
    state = torch._C._cuda_getCheckpointState(0, pool.id)
    free = [
        block
        for segment in torch.cuda.memory_snapshot(pool.id)
        for block in segment["blocks"] if block["state"] == "inactive"
    ]
    places = [(each.data_ptr(), each.numel()) for each in kept]
    kept.clear()
    with torch.cuda.use_mem_pool(pool):
        stale = torch.empty(5000, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    back = [storage_at(*place) for place in places]
    torch._C._cuda_setCheckpointPoolState(
        0, state, [stale.untyped_storage()._cdata],
        [each.untyped_storage()._cdata for each in back],
    )
    statistics = torch._C._cuda_memoryStats(0)
    blocks = {
        block["address"]: block["requested_size"]
        for segment in torch.cuda.memory_snapshot(pool.id)
        for block in segment["blocks"] if block["state"] != "inactive"
    }
    return {
        "statistics": statistics,
        "free": len(free),
        "requested": [blocks[pointer] for pointer, _ in places],
    }


def main():
    torch.cuda.init()
    taken, facts = snapshot()
    with open(sys.argv[1], "wb") as file:
        pickle.dump(
            {"snapshot": taken, "facts": facts, "checkpoint": checkpoint()},
            file,
        )


if __name__ == "__main__":
    main()
