# SPDX-License-Identifier: Apache-2.0
"""Draws memory.svg: where the memory of two training steps lies over time.

    python memory_picture.py [FILE]

A model of 48 MiB, whose gradients and optimizer state make it 192 MiB, trains on
a simulated card of 96 MiB beside 64 MiB of host memory. Times are those of the
machine that computes in the card's place, not of a GPU.
"""

import bisect
import sys

from stratalloc import simulate

CARD, HOST = 96 << 20, 64 << 20
simulate.load(CARD, seed=1)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc._rendering.plot_svg import Areas  # noqa: E402
from stratalloc.telemetry.analysis.over_time import over_time  # noqa: E402
from stratalloc.telemetry.replay import Replay  # noqa: E402

_POINTS = 1200
# A page that shows the file as an image gives it no colour of its own.
_THEME = ("<style>svg{color:#1f2328}@media (prefers-color-scheme:dark)"
          "{svg{color:#e6edf3}}</style>")


def train(steps):
    """Trains so many steps; the stratalloc.Run, and when its last two began."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with stratalloc.trace() as trace:
        model = nn.Sequential(*(layer for _ in range(12)
                                for layer in (nn.Linear(1024, 1024),
                                              nn.ReLU()))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(64, 1024, device="cuda")
        for number in range(steps):
            if number == steps - 2:
                began = int(trace.run().events["time"].max())
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    return trace.run(), began


def draw(run, began):
    """The picture of a run's first device from a moment on, as an SVG file."""
    held = over_time(Replay(run, 0), _POINTS)
    first = max(0, bisect.bisect_right(held["times"], began) - 1)
    names = {"host": "host memory", "disk": "disk"}
    parts = {"GPU": held["allocated"][first:]}
    parts.update((names[tier], sizes[first:])
                 for tier, sizes in held["tiers"].items())
    times = [max(0, time - began) for time in held["times"][first:]]
    svg = Areas("Where the memory of two training steps lies, over time",
                times, run.duration - began, parts,
                {"size of the GPU": [CARD] * len(times)}).svg()
    end = svg.index(">") + 1
    return svg[:end] + _THEME + svg[end:] + "\n"


def main(arguments):
    stratalloc.enable(host_budget=HOST, disk_budget="1GiB")
    picture = draw(*train(steps=4))
    if not arguments:
        sys.stdout.write(picture)
        return
    with open(arguments[0], "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
