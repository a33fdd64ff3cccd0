# SPDX-License-Identifier: Apache-2.0
"""What of a page is left out where the screen is small: lines and columns.

A number is never cut: a column that has no room is left out whole, and so is a
note. Nothing here knows what the lines say.
"""

import dataclasses
import textwrap

from stratalloc._rendering import table as _table

_NAMES = 12  # cells that names keep, if they need them


@dataclasses.dataclass(frozen=True)
class Block:
    """Lines that belong together. `forms`: lists of parts, the longest first;
    where none has room the block is left out. `rank`: 0 gets room first."""

    rank: int
    forms: tuple


def chosen(blocks, room):
    """The parts of the blocks, in order, that `room` lines hold (None: any)."""
    taken = {}
    for at, block in sorted(enumerate(blocks), key=lambda one: one[1].rank):
        for form in block.forms:
            high = sum(map(height, form))
            if room is None or high <= room:
                room = None if room is None else room - high
                taken[at] = form
                break
    return [part for at in sorted(taken) for part in taken[at]]


def height(part):
    """Lines of a sentence or a table."""
    if isinstance(part, str):
        return 1
    return len(part.rows) + any(part.titles) + bool(part.rest)


def wrapped(sentence, width):
    """A sentence as lines that no terminal wraps again."""
    return textwrap.wrap(_table.printable(sentence), max(width, 1)) or [""]


def narrowed(table, width, order):
    """The table without the columns that there is no room for. order: columns
    of numbers by place, the most important first, which stays."""
    order = list(order)
    names = max(map(_table.cells, (table.titles[0],
                                   *map(_table.label, table.rows))))
    while True:
        kept = sorted(order)
        found = dataclasses.replace(
            table, titles=(table.titles[0],
                           *(table.titles[1:][i] for i in kept)),
            rows=[dataclasses.replace(row, cells=tuple(
                row.cells[i] for i in kept)) for row in table.rows])
        numbers = _table.widths(found, width).cells
        used = min(names, _NAMES) + sum(numbers) + 2 * len(numbers)
        if used <= width or len(order) == 1:
            return _without_cut_notes(found, width)
        order.pop()


def _without_cut_notes(table, width):
    """Notes end in numbers: those of which the first has no room go."""
    room = _table.widths(table, width).notes
    # The first one and the sign that there are more.
    if room and max(_table.cells(_table.joined(row.notes[:1], 1 << 14))
                    + 3 * (len(row.notes) > 1)
                    for row in table.rows if row.notes) > room:
        return dataclasses.replace(table, notes="", rows=[
            dataclasses.replace(row, notes=()) for row in table.rows])
    return table


def several(notes, width):
    """As many notes as fit, the first one in any case."""
    kept = list(notes)
    text = ", ".join(kept)
    while _table.cells(text) > width and len(kept) > 1:
        kept.pop()
        text = ", ".join(kept) + ", …"
    return text


def one_line(notes, width):
    """The same, none of them where the first is wider than a line."""
    text = several(notes, width)
    if _table.cells(text) > width:
        text = text.removesuffix(", …")
    return text if _table.cells(text) <= width else "…"
