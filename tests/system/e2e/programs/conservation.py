# SPDX-License-Identifier: Apache-2.0
"""Seeded programs, and what the accounts must add up to after every step.

    conservation.py FIRST LAST

A program has one to three threads. Each trains a model of its own kind (its
class is named after seed and thread, so that nobody else pays into its rows)
with random layers, checkpoints, hooks, exceptions in forward and in backward,
optimizers, autocast, gradients of gradients, sparse gradients, copies, streams,
evictions and pins; backward may run on another thread than forward, a thread
may end inside of its scopes, and somebody may ask while others run. Between
steps nobody runs. Prints one JSON line: {"programs", "looks", "wrong": [[seed,
step, what], ...], "steps": {name: count}, "happened": {what: count}}.
"""

import collections
import gc
import json
import random
import re
import sys
import threading

import torch

import stratalloc
from stratalloc._native import core as _core
from conservation_life import Life, happened, happens

# Of how many programs it is told that something of it happened.
KINDS = {"checkpoints": ("checkpoints",),
         "exceptions": ("raised", "out of memory")}
PARTS = ("allocated", "pending", "stranded", "releasable", "in_private_pools")


def moved():
    """Changes whenever a byte moves."""
    stats = torch.cuda.memory_stats()
    tiers = stratalloc.stats()["tiers"]
    return (stats["allocated_bytes.all.current"],
            stats["allocated_bytes.all.freed"],
            tiers["bytes_evicted"], tiers["bytes_restored"])


def differences():
    """What does not add up when nothing moves: text, empty if all does."""
    gc.collect()  # nothing ends between two answers
    torch.cuda.synchronize()
    while True:  # what is on its way out in the background arrives
        before = moved()
        wrong = _differences()
        if moved() == before:
            return wrong


def _differences():
    wrong = []

    def same(what, one, other):
        if one != other:
            wrong.append(f"{what}: {one} is not {other}")

    found = stratalloc.fragmentation()
    report = stratalloc.report()
    layers = report["layers"]
    here = torch.cuda.memory_allocated()
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    same("layers and live", sum(row["live"] for row in layers), report["live"])
    same("scopes and live", sum(row["live"] for row in report["scopes"]),
         report["live"])
    same("tiers and live", sum(row[tier] for row in layers
                               for tier in ("device", "host", "disk")),
         report["live"])
    same("layers on the device", sum(row["device"] for row in layers), here)
    same("the peak", sum(row["at_peak"] for row in layers),
         torch.cuda.max_memory_allocated())
    same("why it stays", sum(report["stays"].values()), here)
    same("fragmentation", sum(found[part] for part in PARTS), found.reserved)
    same("reserved", found.reserved, torch.cuda.memory_reserved())
    same("allocated", found.allocated, here)
    same("active", found.allocated + found.pending, active)
    same("holders", stratalloc.holders(by="category").total, report["live"])
    try:
        _core.check_invariants(torch.cuda.current_device())
    except ValueError as broken:
        wrong.append(str(broken))
    for row in layers:
        if any(isinstance(value, int) and value < 0
               for value in row.values()):
            wrong.append(f"negative: {row}")
        if row["peak"] < row["live"]:
            wrong.append(f"more than its peak: {row}")
        if (row["blocks"] == 0) != (row["live"] == 0):
            wrong.append(f"blocks without bytes: {row}")
    return wrong


def run(seed, counts):
    """Yields (step, what is wrong) of one program."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    names = [f"Net{seed}x{i}" for i in range(draw.choice((1, 1, 2, 3)))]
    lives = [Life(name, random.Random(f"{seed}/{i}"))
             for i, name in enumerate(names)]
    happens(f"programs with {len(lives)} threads")
    evicted = stratalloc.stats()["tiers"]["bytes_evicted"]
    before = collections.Counter(happened)
    if draw.random() < .3:
        torch.cuda.reset_peak_memory_stats()
    for step in range(draw.randrange(2, 6)):
        chosen = [draw.choice(Life.STEPS) for _ in lives]
        counts.update(chosen)
        failed = []
        threads = [threading.Thread(target=life.step, args=(name, failed))
                   for life, name in zip(lives, chosen)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield step, failed + differences()
    if stratalloc.stats()["tiers"]["bytes_evicted"] > evicted:
        happens("programs with evictions")
    for kind, begins in KINDS.items():
        if any(what.startswith(begins) for what in happened - before):
            happens(f"programs with {kind}")
    lives.clear()
    del threads
    gc.collect()
    wrong = differences()
    left = [row for row in stratalloc.report()["layers"]
            if re.split("[./#]", row["owner"])[0] in names
            and row["live"]]
    yield "end", wrong + [f"left: {left}"] * bool(left)


def main(first, last):
    # The fast kernels have no second derivative. For the process: sdpa_kernel()
    # is as well, whatever thread enters it.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    counts, wrong, looks = collections.Counter(), [], 0
    for seed in range(first, last + 1):
        for step, what in run(seed, counts):
            looks += 1
            wrong += [[seed, step, each] for each in what]
    print(json.dumps({"programs": last - first + 1, "looks": looks,
                      "wrong": wrong[:20], "steps": counts,
                      "happened": happened}))


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:3]))
