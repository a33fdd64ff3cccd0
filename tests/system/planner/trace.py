# SPDX-License-Identifier: Apache-2.0
"""Traces of page uses: text, one line per operator, compressed with xz.

    b NAME PAGES        pages that are live at most, of PAGE_BYTES each
    o NS [r RUNS] [w RUNS] [n RUNS]
                        an operator of NS nanoseconds; it reads, writes, or
                        writes first (new pages) the pages of RUNS
    f RUNS              the last blocks on these pages were freed
    s EVENT             a scope event: a number, as tiering/policy names steps
    c                   a cycle of the program ends

RUNS are `first-last` or `page`, joined by commas. Pages are numbered by their
address, and pages with consecutive numbers adjoin each other.
"""

import lzma
import pathlib

PAGE_BYTES = 2 << 20
FOLDER = pathlib.Path(__file__).parent / "traces"


def runs(pages):
    """Spells page numbers, in the order given."""
    spelled = []
    for page in pages:
        if spelled and spelled[-1][1] + 1 == page:
            spelled[-1][1] = page
        else:
            spelled.append([page, page])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spelled)


def pages(spelled):
    numbers = []
    for run in spelled.split(","):
        first, _, last = run.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def read(name):
    return lzma.decompress((FOLDER / f"{name}.trace.xz").read_bytes()).decode()


def write(name, text):
    FOLDER.mkdir(exist_ok=True)
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (FOLDER / f"{name}.trace.xz").write_bytes(packed)
    return len(packed)


def names():
    return sorted(path.name.removesuffix(".trace.xz")
                  for path in FOLDER.glob("*.trace.xz"))
