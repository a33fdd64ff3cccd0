# SPDX-License-Identifier: Apache-2.0
"""Programs that PyTorch's own allocator fails: open issues of PyTorch.

    native_failures.py native|ours PROGRAM...

Runs the named programs one after the other on a device of 64 MiB and prints one
JSON object: what each of them saw. The exception that an issue is about is
caught and reported, every other one ends the process. All fit the device but
oom_in_a_capture and text_of_oom.
"""

import ctypes
import gc
import json
import os
import sys

from stratalloc import simulate

MIB = 1 << 20
# Programs whose streams must run late.
ASYNC = ("oom_beside_a_pending_free", "frees_wait_in_a_pool")

way, *names = sys.argv[1:]
simulate.load("64MiB", mode="async" if set(names) & set(ASYNC) else "eager")

import torch

import stratalloc

if way == "ours":
    assert stratalloc.enable()

driver = ctypes.CDLL("libcuda.so.1")
driver.cudasim_calls.restype = ctypes.c_long
driver.cudasim_violation_count.restype = ctypes.c_long


def calls(*functions):
    return sum(driver.cudasim_calls(each.encode()) for each in functions)


def returned_to_driver():
    """Calls that take memory back from the program so far."""
    return calls("cudaFree", "cuMemFree", "cuMemUnmap", "cuMemRelease")


def take(mib, **more):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda", **more)


def attempt(function):
    """(what came, "") or (None, the exception's class and text)."""
    try:
        return function(), ""
    except RuntimeError as error:
        return None, f"{type(error).__name__}: {error}"


def busy(side, tensor):
    """Work on `side` that uses the tensor and outlasts any number of queries:
    only a wait sees its end."""
    side.wait_stream(torch.cuda.current_stream())
    pinned = torch.zeros(4096, dtype=torch.uint8).pin_memory()
    driver.cudasim_stick_copy(ctypes.c_long(1), ctypes.c_long(10 ** 6))
    with torch.cuda.stream(side):
        tensor[:4096].copy_(pinned, non_blocking=True)
    tensor.record_stream(side)


def oom_beside_a_pending_free():
    """189504. The block that fits is free as soon as a stream has passed, and
    is part of a larger segment, so that freeing segments does not help."""
    side = torch.cuda.Stream()
    whole = take(48)
    del whole
    first, second = take(24), take(24)
    second.fill_(2)
    busy(side, first)
    del first
    got, error = attempt(lambda: take(24).fill_(1))
    del got
    again, error_again = attempt(lambda: take(24).fill_(1))
    return {"error": error, "error_again": error_again,
            "kept": second[::4096].float().mean().item()}


def grow_in_a_pool():
    """159674. What the pool has cached is in the way of a larger block."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        data = take(40)
        del data
        data, error = attempt(lambda: take(48).fill_(3))
        mean = None if data is None else data[::4096].float().mean().item()
        del data
    return {"error": error, "mean": mean}


def grow_in_a_pool_beside_a_cache():
    """159674, the other half: what is cached outside the pool is in the way."""
    data = take(40)
    del data
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        data, error = attempt(lambda: take(48).fill_(3))
        mean = None if data is None else data[::4096].float().mean().item()
        del data
    return {"error": error, "mean": mean}


def _in_pool_after(cached, size):
    """`size` MiB from a pool whose cached memory lies elsewhere in it."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = cached()
        data, error = attempt(lambda: take(size).fill_(3))
        mean = None if data is None else data[::4096].float().mean().item()
        del data, kept
    return {"error": error, "mean": mean}


def fragments_in_a_pool():
    """159674, of the pool itself: two free pieces of 12 MiB that do not touch,
    16 MiB left on the device, 24 MiB asked for."""
    return _in_pool_after(lambda: [take(12) for _ in range(4)][1::2], 24)


def small_blocks_in_a_pool():
    """159674, of the pool itself: 40 MiB of small blocks, free again."""
    def cached():
        small = [torch.empty(500 << 10, dtype=torch.uint8, device="cuda")
                 for _ in range(80)]
        del small

    return _in_pool_after(cached, 48)


def another_streams_cache_in_a_pool():
    """159674, of the pool itself: cached for another stream."""
    def cached():
        with torch.cuda.stream(torch.cuda.Stream()):
            take(40)

    return _in_pool_after(cached, 48)


def frees_wait_in_a_pool():
    """175015, first: a block freed with another stream's use comes back when
    that stream has passed, in a MemPool too."""
    pool = torch.cuda.MemPool()
    side = torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
        first = take(1)
        where = first.data_ptr()
        busy(side, first)
        del first
        torch.cuda.synchronize()
        second = take(1)
        reused = second.data_ptr() == where
        active = torch.cuda.memory_stats()["active_bytes.all.current"]
        del second
    return {"reused": reused, "active": active}


def empty_cache_in_a_pool():
    """175015, second: empty_cache works while a MemPool is active."""
    cached = take(32)
    del cached
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved()
    return {"reserved": reserved}


def _capture(size):
    """A capture whose pool has cached 30 MiB when it asks for `size`."""
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    told = {"returned": None, "inside": ""}

    def run():
        with torch.cuda.graph(graph):
            data = take(30)
            data.fill_(1)
            del data
            before = returned_to_driver()
            data, told["inside"] = attempt(lambda: take(size))
            told["returned"] = returned_to_driver() - before
            if data is not None:
                data.fill_(7)
                out.copy_(data[-1:])
            else:
                out.fill_(5)
        graph.replay()
        torch.cuda.synchronize()

    _, told["capture"] = attempt(run)
    told["out"] = attempt(lambda: out.item())[0]
    return told


def no_driver_free_in_a_capture():
    """159594. The capture's pool holds 30 MiB free, 34 MiB are left on the
    device, 40 MiB are asked for: memory must not go back to the driver."""
    return _capture(40)


def oom_in_a_capture():
    """159594, where it cannot fit: a clean out of memory, and the capture and
    the device live on."""
    return _capture(80)


def text_of_oom():
    """173049. What the exception advises."""
    kept = take(40)
    _, error = attempt(lambda: take(80))  # no eviction makes room for it
    del kept
    return {"error": error}


results = {"enabled": stratalloc.is_enabled()}
for name in names:
    results[name] = globals()[name]()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
results["violations"] = driver.cudasim_violation_count()
print(json.dumps(results))
