# SPDX-License-Identifier: Apache-2.0
"""Runs programs with history on, and writes what history told of each.

    python -m tests.system.differential.events_worker SEEDS OUTPUT

As worker.py, in one process per allocator. Between two steps stands a snapshot
event labelled "after": events are compared step by step. Addresses become the
number of the block, streams the order in which they came; see events.py for
what is compared.
"""

import json
import os
import sys

from tests.system.differential import program, worker

# pylint: disable=wrong-import-order
import torch

from tests.system.differential import tensors

EXPANDABLE = "expandable_segments:True" in os.environ.get(
    "PYTORCH_CUDA_ALLOC_CONF", ""
)
if EXPANDABLE:
    tensors.CALLS["native"] = dict.fromkeys(
        tensors.CALLS["native"], "cuMemCreate"
    )
# What has no events of its own, or such as no rule of events.py compares.
WITHOUT = ("tight", "fraction", "rounding", "starved", "lend", "checkpoint",
           "capture_too_large", "graphed")  # fmt: skip


def label(text):
    torch.cuda.memory._set_memory_metadata(text)


def mark():
    """Ends a step in the history. Returns what is reserved and active."""
    label("after")
    torch.cuda.memory_snapshot(include_traces=False)
    stats = torch._C._cuda_memoryStats(0)
    return [stats[name]["all"]["current"]
            for name in ("reserved_bytes", "active_bytes")]  # fmt: skip


def without_forks(step):
    """A capture on one stream: where a free that was put off is completed has
    the frames of the free here, of what came next under native."""
    if step[0] == "capture":
        step = [*step[:3], [abs(size) for size in step[3]]]
    return step


def record(made, steps):
    """The events of a program, and the two numbers after each step."""
    torch.cuda.memory._record_memory_history(
        "all", stacks="python", clear_history=True
    )
    numbers = [mark()]
    run = worker.Run(*made)
    for i, step in enumerate(map(without_forks, steps)):
        label(f"step {i}, {step[0]}")
        run.step(step)
        numbers.append(mark())
    label("the end")
    run.close()
    numbers.append(mark())
    del run
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    return {
        "events": [plain(each) for each in snapshot["device_traces"][0]],
        "numbers": numbers,
        "dirty": worker.clean(),
    }


def plain(event):
    """Every key, the frames shortened to those of the program's own steps."""
    event = dict(event)
    event["frames"] = [
        f"{os.path.basename(frame['filename'])}:{frame['name']}:{frame['line']}"
        for frame in event.get("frames", ())
        if "differential" in frame["filename"]
    ]
    return event


def main():
    seeds, output = sys.argv[1:]
    first, last = map(int, seeds.split("-"))
    made = worker.prepare()
    assert worker.clean() is None
    told = {
        seed: record(made, program.make(seed, devices=1, without=WITHOUT))
        for seed in range(first, last + 1)
    }
    with open(output, "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
