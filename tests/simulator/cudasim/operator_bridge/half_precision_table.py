# SPDX-License-Identifier: Apache-2.0
"""Table of operators: times in half and bfloat16 beside those in float32.

    python tests/simulator/cudasim/operator_bridge/half_precision_table.py [--write] [WORD ...]

One row per operator of the simulated device, forward and backward: the median
of the processor's time of some runs. WORDs choose rows by name. The exit status is the number of rows
of which a type takes more than LIMIT times float32 (at most 100). `--write`
puts the table into HALF_PRECISION.md.

The table is that of a processor without instructions for the types, whatever
the host has: there PyTorch's own kernels for the CPU are slowest.

From the repository root, with CUDASIM_LIBRARIES naming the folders of the
simulated device's libraries (simulated.py).
"""

import argparse
import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, *[".."] * 3))
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

# pylint: disable=wrong-import-position
from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="1GiB")

import torch

from tests.simulator.cudasim.operator_bridge.half_precision_cases import CASES, inputs

TYPES = (torch.float32, torch.half, torch.bfloat16)
LIMIT = 5
RUNS = 5
# A row takes at least so long: shorter times are those of the dispatcher.
SHORTEST = 0.1e-3


def run(function, made):
    """Processor seconds of forward and backward; None where nothing flows."""
    start = time.process_time()
    results = function(*made)
    forward = time.process_time() - start
    results = results if isinstance(results, (tuple, list)) else (results,)
    roots = [
        r for r in results if isinstance(r, torch.Tensor) and r.requires_grad
    ]
    leaves = [t for t in made if t.requires_grad]
    if not roots or not leaves:
        return forward, None
    gradients = [torch.ones_like(r) for r in roots]
    start = time.process_time()
    torch.autograd.grad(roots, leaves, gradients, allow_unused=True)
    return forward, time.process_time() - start


def measure(function, dtype):
    """Medians of forward and backward; an error's text if the type is not
    computed."""
    try:
        made = inputs(dtype)
        runs = [run(function, made) for _ in range(RUNS + 1)][1:]
    except (RuntimeError, NotImplementedError, TypeError) as error:
        reason = str(error).split("\n", maxsplit=1)[0]
        print(f"{dtype}: {reason}", file=sys.stderr)
        return reason
    forward = statistics.median(f for f, _ in runs)
    if runs[0][1] is None:
        return forward, None
    return forward, statistics.median(b for _, b in runs)


def rows_of(name, function):
    """(name, milliseconds in float32, factors of the other types)."""
    times = [measure(function, dtype) for dtype in TYPES]
    base = times[0]
    if isinstance(base, str):
        raise RuntimeError(f"{name} in float32: {base}")
    for i, part in enumerate((name, name + ", backward")):
        if base[i] is None:
            continue
        factors = [
            None
            if isinstance(t, str) or t[i] is None
            else max(t[i], SHORTEST) / max(base[i], SHORTEST)
            for t in times[1:]
        ]
        yield part, base[i] * 1e3, factors


def as_text(row):
    name, base, factors = row
    shown = ["not computed" if f is None else f"{f:.1f}" for f in factors]
    return f"| {name} | {base:.2f} | {' | '.join(shown)} |"


HEADER = f"""\
# Times of half precision on the simulated device

Written by `half_precision_table.py --write`: times of each operator in half and
bfloat16 as multiples of its time in float32. They are medians of {RUNS} runs on
one thread, in processor time, as on a processor without instructions for the
types (`ONEDNN_MAX_CPU_ISA=AVX2`). Times below {SHORTEST * 1e3:.1f} ms count as {SHORTEST * 1e3:.1f} ms.
No factor may exceed {LIMIT}; `half_precision.cc` computes in float what would.
Inputs: `half_precision_cases.py`.

| operator | float32, ms | half | bfloat16 |
|---|---|---|---|
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    lines, slow = [], 0
    for name, function in CASES.items():
        if options.words and not any(w in name for w in options.words):
            continue
        for row in rows_of(name, function):
            slow += any(f is not None and f > LIMIT for f in row[2])
            lines.append(as_text(row))
            print(lines[-1], flush=True)
    if options.write:
        path = os.path.join(HERE, "HALF_PRECISION.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(HEADER + "\n".join(lines) + "\n")
    return min(slow, 100)


if __name__ == "__main__":
    sys.exit(main())
