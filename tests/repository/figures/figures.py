# SPDX-License-Identifier: Apache-2.0
"""Writes what was measured into the READMEs that speak of it.

    python3 -m tests.repository.figures.figures            which READMEs are stale
    python3 -m tests.repository.figures.figures --write    mends them

A README has its figures between two lines, and nothing else between them:

    <!-- figures: NAME -->
    <!-- end of figures -->
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator

from tests.repository.figures import blocks

ROOT = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4))
_END = "<!-- end of figures -->"

# name: (the README, what was measured, what is said of it)
BLOCKS: dict[str, tuple[str, str, Callable[[dict], Iterator[str]]]] = {
    "replay": ("tests/system/replay/README.md", "tests/repository/figures/replay.json",
               blocks.replay),
    "first_page": ("README.md", "tests/repository/figures/replay.json",
                   blocks.first_page),
    "allocations": ("allocator/README.md", "tests/repository/figures/bench.json",
                    blocks.allocations),
    "guard": ("python_shim/torch_bridge/README.md", "tests/repository/figures/bench.json",
              functools.partial(blocks.edges, begins=("op guard",))),
    "scopes": ("python_shim/extensions/scopes/README.md", "tests/repository/figures/bench.json",
               functools.partial(blocks.edges, begins=("push+pop", "nn."))),
    "attribution": ("accounting/README.md", "tests/repository/figures/bench.json",
                    blocks.attribution),
    "levels": ("allocator/events/README.md", "tests/repository/figures/bench.json",
               blocks.levels),
    "exports": ("python_shim/stratalloc/telemetry/README.md",
                "tests/repository/figures/exports.json", blocks.exports),
    "instructions": ("tests/system/benchmarks/README.md",
                     "tests/system/benchmarks/instructions.json",
                     blocks.instructions),
}


class NoBlockError(Exception):
    """A README without the two lines of its block, or with more of them."""


def renewed(text: str, name: str, lines: list[str]) -> str:
    """The README's text with other lines in its block `name`."""
    begin = f"<!-- figures: {name} -->"
    for mark in (begin, _END):
        if text.count(mark + "\n") != 1:
            raise NoBlockError(
                f"{mark} is there {text.count(mark)} times as a line; once "
                "is right, begin before end")
    before, _, rest = text.partition(begin + "\n")
    _, end, after = rest.partition(_END + "\n")
    if not end:
        raise NoBlockError(f"{_END} stands before {begin}")
    inside = "".join(line + "\n" for line in lines)
    return f"{before}{begin}\n{inside}{_END}\n{after}"


def stale(root: str) -> dict[str, str]:
    """{README: its text as it should be} of those that are not so."""
    found = {}
    for name, (readme, data, say) in BLOCKS.items():
        with open(os.path.join(root, data), encoding="utf-8") as file:
            measured = json.load(file)
        with open(os.path.join(root, readme), encoding="utf-8") as file:
            text = file.read()
        right = renewed(text, name, list(say(measured)))
        if right != text:
            found[readme] = right
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.repository.figures.figures")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = stale(ROOT)
    for readme, text in found.items():
        if args.write:
            with open(os.path.join(ROOT, readme), "w",
                      encoding="utf-8") as file:
                file.write(text)
        print(readme, "written" if args.write else "is stale")
    return 1 if found and not args.write else 0


if __name__ == "__main__":
    sys.exit(main())
