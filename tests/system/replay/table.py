# SPDX-License-Identifier: Apache-2.0
"""Replays traces under each allocator and prints what it cost.

    python -m tests.system.replay.table [--rounds 5] [--json] [TRACE...]

Each replay is a process of its own (worker.py); in a test a fork of the process
that has imported torch. Bars, which say nothing about
time: ours, with tiering and without, reserves at its peak no more than the
smaller of both natives on any trace, or than its cap in traces/caps.json where
that is missed; with tiering off the geometric mean of reserved / allocated at
the peak of allocated is at most 1.02. Exit code 1: a cap or that bar is passed.
"""

import argparse
import json
import math
import os
import statistics
import sys

from bazel import programs

OURS = ("stratalloc", "tiered")
ALLOCATORS = ("native", "expandable", *OURS)
_HERE = os.path.dirname(os.path.abspath(__file__))
LARGEST_RATIO = 1.02


def traces():
    """Paths of the checked-in traces."""
    folder = os.path.join(_HERE, "traces")
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))
            if name.endswith(".trace")]


def natives():
    """The natives' peaks on the checked-in traces, measured by this tool: the
    same on any machine, and half of what a test would have to run."""
    with open(os.path.join(_HERE, "traces", "natives.json"),
              encoding="utf-8") as file:
        return json.load(file)


def caps():
    """{(trace, one of OURS): bytes}: where the bar is missed, by how much at
    most. What was measured when it was written: whoever passes it made it
    worse, whoever meets the bar takes the cap away."""
    with open(os.path.join(_HERE, "traces", "caps.json"),
              encoding="utf-8") as file:
        return {(trace, allocator): value
                for allocator, by in json.load(file).items()
                for trace, value in by.items()}


def replay(path, allocator, rounds):
    """What worker.py measured; RuntimeError with its last words otherwise."""
    done = programs.run(os.path.join(_HERE, "worker.py"), path, allocator,
                        str(rounds))
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{path} under {allocator}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def ratio(measured):
    return measured["reserved_at_allocated"] / max(1, measured["allocated"])


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def misses(results):
    """{(trace, one of OURS): (ours, the smaller native)} where ours reserves
    more."""
    said = {}
    for name, by in results.items():
        least = min(by["native"]["reserved"], by["expandable"]["reserved"])
        for allocator in OURS:
            ours = by[allocator]["reserved"]
            if ours > least:
                said[name, allocator] = ours, least
    return said


def failures(results):
    """What passes a bar without a cap, or its cap, or has one in vain."""
    said, allowed, missed = [], caps(), misses(results)
    for where, (ours, least) in missed.items():
        cap = allowed.get(where)
        if cap is None or ours > cap:
            said.append(f"{where}: {ours} bytes reserved at the peak, a native "
                        f"{least}, the cap is {cap}")
    said += [f"{where}: has a cap and meets the bar" for where in allowed
             if where[0] in results and where not in missed]
    mean = geomean(ratio(by["stratalloc"]) for by in results.values())
    if mean > LARGEST_RATIO:
        said.append(f"reserved / allocated is {mean:.4f} in the geometric "
                    f"mean, more than {LARGEST_RATIO}")
    return said


def _middle(one):
    """The median time of an operation, with the card's for its calls."""
    return statistics.median(one["ns"]), one["card_ns"]["later"]


def _rows(results):
    for name, by in results.items():
        for allocator in ALLOCATORS:
            one = by[allocator]
            time, card = "-", "-"
            if one["ns"]:
                middle, later = _middle(one)
                time = f"{middle:.0f} ({min(one['ns']):.0f}-{max(one['ns']):.0f})"
                card = f"{later:.0f}"
            yield (name, allocator, f"{one['reserved'] / 2**20:.0f}",
                   f"{ratio(one):.4f}",
                   f"{one['reserved'] / max(1, one['allocated_at_reserved']):.4f}",
                   str(sum(one["calls"].values())),
                   f"{one['card_ns']['first']:.0f}", time, card)
    for allocator in ALLOCATORS:
        every = [by[allocator] for by in results.values()]
        timed = all(one["ns"] for one in every)
        yield ("geomean", allocator,
               f"{geomean(one['reserved'] for one in every) / 2**20:.0f}",
               f"{geomean(map(ratio, every)):.4f}", "", "",
               f"{geomean(max(1, one['card_ns']['first']) for one in every):.0f}",
               f"{geomean(_middle(one)[0] for one in every):.0f}" if timed else "-",
               f"{geomean(max(1, _middle(one)[1]) for one in every):.0f}"
               if timed else "-")


def main():
    parser = argparse.ArgumentParser(prog="tests.system.replay.table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("traces", nargs="*")
    args = parser.parse_args()
    results = {}
    for path in args.traces or traces():
        name = os.path.basename(path).removesuffix(".trace")
        results[name] = {
            allocator: replay(path, allocator, args.rounds)
            for allocator in ALLOCATORS
        }
    said = failures(results)
    missed = [[*where, *values] for where, values in misses(results).items()]
    if args.json:
        print(json.dumps({"traces": results, "misses": missed,
                          "failures": said}))
        return 1 if said else 0
    from rich.console import Console
    from rich.table import Table

    table = Table("trace", "allocator", "peak reserved MiB",
                  "reserved/allocated at peak allocated", "at peak reserved",
                  "driver calls", "card's ns per operation, first",
                  "processor's, later", "card's, later")
    for row in _rows(results):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for trace, allocator, ours, least in missed:
        print(f"missed: {trace} {allocator}: {ours} bytes at the peak, "
              f"a native {least}")
    for line in said:
        print("failed:", line)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
