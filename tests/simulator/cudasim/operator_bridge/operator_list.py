# SPDX-License-Identifier: Apache-2.0
"""What the operator bridge runs, and how far from the CPU.

    python tests/simulator/cudasim/operator_bridge/operator_list.py [--json] [WORD ...]

One line per item: models, layers, operators, optimizers, several devices and
processes; each with the largest difference between the simulated device and
the CPU and the bound that it has to keep. WORDs choose items by name. The exit
status is the number of items that failed (at most 100).

From the repository root, with CUDASIM_LIBRARIES naming the folders of the
simulated device's libraries (simulated.py).
"""

import argparse
import json
import os
import sys
import time

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3)
)

# pylint: disable=wrong-import-position
from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="1GiB", devices=2)

from tests.simulator.cudasim.operator_bridge import (  # noqa: F401
    listed,
    listed_layers,
    listed_models,
    listed_training,
)


def run_one(item):
    """One line of the list."""
    launches = DEVICE.launches_without_twin()
    bridged = DEVICE.bridged()
    start = time.perf_counter()
    line = {"item": item.name, "bound": item.bound, "why": item.why}
    try:
        line["difference"] = listed.measure(item)
        line["ok"] = line["difference"] <= item.bound
    except Exception as e:  # pylint: disable=broad-exception-caught
        line["ok"] = False
        line["error"] = f"{type(e).__name__}: {e}"
    line["seconds"] = round(time.perf_counter() - start, 2)
    line["operators"] = DEVICE.bridged() - bridged
    line["launches_without_twin"] = DEVICE.launches_without_twin() - launches
    if line["launches_without_twin"]:
        line["ok"] = False
        DEVICE.cuda.cudasim_clear_errors()
    return line


def as_text(line):
    """A line for people."""
    if "difference" in line:
        shown = f"{line['difference']:.3g}"
        if line["bound"]:
            shown += f" (bound {line['bound']:g}: {line['why']})"
    else:
        shown = line["error"].replace("\n", " ")[:160]
    mark = "ok  " if line["ok"] else "FAIL"
    return (
        f"{mark} {line['item']:<68} {line['seconds']:>6.2f} s "
        f"{line['operators']:>6}  {shown}"
    )


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args(argv)
    lines = []
    if not options.json:
        print("     item, seconds, bridged operators, largest difference")
    for item in listed.ITEMS:
        if options.words and not any(
            word.lower() in item.name.lower() for word in options.words
        ):
            continue
        lines.append(run_one(item))
        if not options.json:
            print(as_text(lines[-1]), flush=True)
    if options.json:
        json.dump(lines, sys.stdout, indent=1)
        print()
    return min(sum(not line["ok"] for line in lines), 100)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Not through the interpreter's end: autograd's threads may still want its
    # lock there, and PyTorch then terminates the process.
    sys.stdout.flush()
    os._exit(status)
