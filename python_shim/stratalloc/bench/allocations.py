# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of allocating and freeing, ours against torch's own.

Both allocators live in one process. A *case* is one line of the table; each of
its rounds runs the same work once under each, and counts the CUDA calls that
each made (simulated device only).

The first half of this file runs in the worker, the second is the list of
cases.
"""

import ctypes
import os
import random

from stratalloc.bench import library
from stratalloc.bench import traces

# Enough that a round takes milliseconds.
_PAIRS = 20000
_SLOW_PAIRS = 5000  # where every call goes the whole way, or waits
_HISTORY_ENTRIES = 10000
_WINDOW = 64
_LARGEST_LOG2 = 24  # of a block in the window: 16 MiB


def measure(torch, work, history=False, prepare=False, ours_first=True,
            **values):
    """One round of both; nanoseconds and CUDA calls per unit of the work."""
    from stratalloc import simulate
    from stratalloc._native import bridge as _bridge

    if prepare:
        _bridge.call("native_init", torch.cuda.device_count())
        library.call("prepare", int(history), _HISTORY_ENTRIES)
    simulated = simulate.loaded()

    def calls():
        return simulate.calls() if simulated else 0

    answer = {}
    for native in ((0, 1) if ours_first else (1, 0)):
        name = "native" if native else "ours"
        taken = ctypes.c_double()
        before = calls()
        units = _WORKS[work](native, taken, **values)
        answer[name] = taken.value / units
        answer[name + "_calls"] = ((calls() - before) / units
                                   if simulated else None)
    return answer


def _pairs(native, taken, size, count, threads=1):
    library.call("pairs", native, size, count, threads, ctypes.byref(taken))
    return count * threads


def _handover(native, taken, size, count):
    library.call("handover", native, size, count, ctypes.byref(taken))
    return count


def _operations(native, taken, packed, blocks, streams, threads):
    count = len(packed) // traces.OPERATION_BYTES
    library.call("operations", native, packed, count, blocks, streams, threads,
                 ctypes.byref(taken))
    return count * threads


def _window(native, taken, count, sizes, threads=1):
    """Per malloc and free; `sizes`: how many different ones, 0 for any."""
    key = ("window", count, sizes)
    if key not in _made:
        _made[key] = window(count, sizes)
    packed, blocks = _made[key]
    return _operations(native, taken, packed, blocks, 1, threads) // 2


def _trace(native, taken, path, threads=1):
    if path not in _made:
        _made[path] = traces.read(path)
    trace = _made[path]
    return _operations(native, taken, trace.packed, trace.blocks,
                       trace.streams, threads)


_made = {}
_WORKS = {"pairs": _pairs, "handover": _handover, "window": _window,
          "trace": _trace}


def window(count, sizes):
    """Random frees from a window of 64 live blocks of mixed sizes.

    (packed operations, blocks): fills the window, then `count` times frees one
    block at random and allocates another. Sizes lie between 512 B and 16 MiB,
    uniform in their logarithm.
    """
    chance = random.Random(7)

    def any_size():
        return int(2 ** chance.uniform(9, _LARGEST_LOG2))

    some = [any_size() for _ in range(sizes)]
    operations, live = [], []
    for block in range(_WINDOW + count):
        if len(live) == _WINDOW:
            victim = live.pop(chance.randrange(_WINDOW))
            operations.append((traces.FREE, 0, victim, 0))
        live.append(block)
        operations.append((traces.MALLOC, 0, block,
                           chance.choice(some) if some else any_size()))
    operations += [(traces.FREE, 0, block, 0) for block in live]
    return traces.pack(operations), _WINDOW + count


# ---- The list -----------------------------------------------------------

PAIR_SIZES = ((512, "512 B"), (64 << 10, "64 KiB"), (4 << 20, "4 MiB"),
              (64 << 20, "64 MiB"))
_GOAL = 0.25
_EVENTS_GOAL = 0.35


def cases(trace_files):
    """(name, unit, what to ask the worker, the ratio to hold or None)"""
    for size, name in PAIR_SIZES:
        yield (f"malloc/free {name}", "pair",
               {"work": "pairs", "size": size, "count": _PAIRS}, _GOAL)
    for size, name in PAIR_SIZES:
        yield (f"malloc/free {name}, events on", "pair",
               {"work": "pairs", "size": size, "count": _PAIRS,
                "history": True}, _EVENTS_GOAL)
    for size, name in PAIR_SIZES[:1] + PAIR_SIZES[2:3]:
        # Four times native's throughput is a quarter of its time.
        yield (f"malloc/free {name}, two threads, two streams", "pair",
               {"work": "pairs", "size": size, "count": _PAIRS, "threads": 2},
               _GOAL)
    for sizes, name in ((16, "16 sizes"), (0, "any size")):
        for threads, suffix in ((1, ""), (2, ", two threads")):
            yield (f"window of {_WINDOW}, {name}{suffix}", "pair",
                   {"work": "window", "sizes": sizes, "count": _SLOW_PAIRS,
                    "threads": threads}, None)
    yield (f"window of {_WINDOW}, 16 sizes, events on", "pair",
           {"work": "window", "sizes": 16, "count": _SLOW_PAIRS,
            "history": True}, None)
    for size, name in PAIR_SIZES[:1] + PAIR_SIZES[2:3]:
        yield (f"producer and consumer, {name}", "pair",
               {"work": "handover", "size": size, "count": _PAIRS}, None)
    for path in trace_files:
        name = os.path.basename(path).removesuffix(".trace")
        for threads, suffix in ((1, ""), (2, ", two threads")):
            yield (f"trace {name}{suffix}", "operation",
                   {"work": "trace", "path": path, "threads": threads}, None)
