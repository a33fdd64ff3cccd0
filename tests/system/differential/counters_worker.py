# SPDX-License-Identifier: Apache-2.0
"""Program that shows all counters of two devices after each of its steps.

    python -m tests.system.differential.counters_worker OUTPUT

Writes JSON, a list of [step, memory_stats of each device, bytes used of each]:
see counters_test.py.
"""

import json
import sys

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB", devices=2)

# pylint: disable=wrong-import-position
import torch

MIB = 1 << 20
SHOWN = []


def show(step):
    SHOWN.append([
        step,
        [dict(torch.cuda.memory_stats(i)) for i in range(2)],
        [device.used(i) for i in range(2)],
    ])  # fmt: skip


def allocate(mib, index=0):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{index}")


def allocate_in(pool, mib=4):
    with torch.cuda.use_mem_pool(pool):
        return allocate(mib)


def refused(index):
    try:
        allocate(300, index)
    except torch.OutOfMemoryError:
        return
    raise AssertionError("300 MiB were served on a device of 256 MiB")


def empty_in(pool):
    with torch.cuda.use_mem_pool(pool):
        torch.cuda.empty_cache()


def before_the_first_allocation():
    torch.cuda.init()
    show("initialised")
    for number in range(3):
        torch.cuda.empty_cache()
        show(f"empty_cache {number}")
    torch.cuda.reset_accumulated_memory_stats(1)
    torch.cuda.reset_peak_memory_stats(0)
    show("reset")
    torch.cuda.empty_cache()
    show("empty_cache after reset")


def on_one_device():
    kept = allocate(1)
    show("allocated")
    torch.cuda.empty_cache()
    show("emptied")
    refused(0)
    show("refused")
    del kept
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats(0)
    show("reset of one device")


def on_the_second_device():
    refused(1)
    show("refused on the second device")
    large = allocate(100, 1)
    del large
    large = allocate(200, 1)
    show("retried")
    del large
    for index in range(2):
        torch.cuda.reset_accumulated_memory_stats(index)
        torch.cuda.reset_peak_memory_stats(index)
    torch.cuda.empty_cache()
    show("reset after a retry")


def pools():
    pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
    show("pools")
    empty_in(pool)
    show("emptied in the route of an unused pool")
    memory = allocate_in(pool)
    torch.cuda.empty_cache()
    show("emptied beside a pool")
    empty_in(pool)
    show("emptied in its route")
    del memory
    empty_in(other)
    show("emptied in the route of the other")
    del pool
    show("pool of free memory dropped")
    del other
    show("unused pool dropped")
    pool = torch.cuda.MemPool()
    memory = allocate_in(pool)
    del pool
    show("pool of live memory dropped")
    torch.cuda.empty_cache()
    del memory
    torch.cuda.empty_cache()
    show("its memory freed")


def graphs():
    x = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    show("captured")
    torch.cuda.empty_cache()
    show("emptied beside a graph")
    del graph
    torch.cuda.empty_cache()
    show("graph dropped")
    del y
    torch.cuda.empty_cache()
    show("its results dropped")


before_the_first_allocation()
on_one_device()
on_the_second_device()
pools()
graphs()
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(SHOWN, file)
