# SPDX-License-Identifier: Apache-2.0
"""Replays traces under each allocator and prints what it cost.

    python -m tests.replay.table [--rounds 5] [--json] [TRACE...]

Each replay is a process of its own (worker.py). Bars, which say nothing about
time: ours reserves at its peak no more than the smaller of both natives on any
trace; the geometric mean of reserved / allocated at the peak of allocated is
at most 1.02.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

ALLOCATORS = ("native", "expandable", "stratalloc")
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


def replay(path, allocator, rounds):
    """What worker.py measured; RuntimeError with its last words otherwise."""
    done = subprocess.run(
        [sys.executable, os.path.join(_HERE, "worker.py"), path, allocator,
         str(rounds)],
        capture_output=True, text=True, timeout=300, check=False)
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
    """What misses a bar, one sentence each."""
    said = []
    for name, by in results.items():
        least = min(by["native"]["reserved"], by["expandable"]["reserved"])
        if by["stratalloc"]["reserved"] > least:
            said.append(f"{name}: ours reserves {by['stratalloc']['reserved']} "
                        f"bytes at its peak, a native {least}")
    mean = geomean(ratio(by["stratalloc"]) for by in results.values())
    if mean > LARGEST_RATIO:
        said.append(f"reserved / allocated is {mean:.4f} in the geometric "
                    f"mean, more than {LARGEST_RATIO}")
    return said


def _rows(results):
    for name, by in results.items():
        for allocator in ALLOCATORS:
            one = by[allocator]
            time = "-"
            if one["ns"]:
                middle = statistics.median(one["ns"])
                time = f"{middle:.0f} ({min(one['ns']):.0f}-{max(one['ns']):.0f})"
            yield (name, allocator, f"{one['reserved'] / 2**20:.0f}",
                   f"{ratio(one):.4f}",
                   f"{one['reserved'] / max(1, one['allocated_at_reserved']):.4f}",
                   str(sum(one["calls"].values())), time)
    for allocator in ALLOCATORS:
        yield ("geomean", allocator,
               f"{geomean(by[allocator]['reserved'] for by in results.values()) / 2**20:.0f}",
               f"{geomean(ratio(by[allocator]) for by in results.values()):.4f}",
               "", "",
               "-" if not all(by[allocator]["ns"] for by in results.values())
               else f"{geomean(statistics.median(by[allocator]['ns']) for by in results.values()):.0f}")


def main():
    parser = argparse.ArgumentParser(prog="tests.replay.table")
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
    said = misses(results)
    if args.json:
        print(json.dumps({"traces": results, "misses": said}))
        return 1 if said else 0
    from rich.console import Console
    from rich.table import Table

    table = Table("trace", "allocator", "peak reserved MiB",
                  "reserved/allocated at peak allocated", "at peak reserved",
                  "driver calls", "ns per operation")
    for row in _rows(results):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for line in said:
        print("missed:", line)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
