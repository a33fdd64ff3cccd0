# SPDX-License-Identifier: Apache-2.0
"""A table for people: names, numbers, and what the numbers consist of.

Made once, and written as text (here), for rich (table_rich.py) and as HTML
(table_html.py). Widths are cells of a terminal; a pipe or a file has whole
lines, unless COLUMNS says how wide they may be. Where it is narrow, names are
cut in the middle and notes after a comma; numbers never are, so a terminal with
no room for them and _LEAST cells of names has lines that wrap.
"""

import dataclasses
import os
import re
import unicodedata

WIDTH, HEIGHT = 100, 24  # of a terminal that does not say
# Columns of a pipe or a file: module paths are whole, and a name of megabytes
# still does not make every line of its table as long.
WHOLE = 1 << 10
_LEAST = 12  # cells of names, and of notes if there are any
_GAP = "  "


@dataclasses.dataclass(frozen=True)
class Row:
    """One line. `level`: of indentation; `share`: of the whole, 0 to 1, or
    None; `notes`: the most important first."""

    name: str
    cells: tuple
    notes: tuple = ()
    level: int = 0
    share: float | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under titles. `rest`: a sentence about rows that are left out."""

    titles: tuple  # of the names, then of each column of numbers
    rows: list
    rest: str = ""
    notes: str = ""  # the notes' title


@dataclasses.dataclass(frozen=True)
class Widths:
    """Cells of each part of a line; 0: it is left out."""

    name: int
    cells: tuple
    bar: int
    notes: int


def terminal(stream):
    """(columns, lines) of the terminal that `stream` writes to, or of what is
    no terminal."""
    size = [_number("COLUMNS"), _number("LINES")]
    if 0 in size:
        usual = (WIDTH, HEIGHT)
        try:
            real = os.get_terminal_size(stream.fileno())
        except (AttributeError, ValueError, OSError):
            real, usual = (0, 0), (WHOLE, HEIGHT)
        size = [given or found or wanted for given, found, wanted
                in zip(size, real, usual)]
    return tuple(size)


def _number(variable):
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def cells(text):
    """How wide a printable text is."""
    return sum(_cells_of(c) for c in text)


def _cells_of(c):
    if c == "\ufe0f":
        return 1  # makes an emoji, two cells wide, of the character before it
    if unicodedata.category(c) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def printable(text):
    """One line that moves no cursor, whatever the text is."""
    return "".join(c if c.isprintable() else "?" for c in text)


def natural(name):
    """A key that sorts names with their numbers as numbers: 2 before 10."""
    parts = re.split("([0-9]+)", name)
    # Not int(), which refuses numbers of thousands of digits.
    parts[1::2] = [(len(digits.lstrip("0")), digits.lstrip("0"), digits)
                   for digits in parts[1::2]]
    return parts


def counted(count, what):
    """A number of things for people."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def refused(count):
    """So many requests that found no memory, for people."""
    were = "was" if count == 1 else "were"
    return f"{counted(count, 'request')} {were} refused"


def cut(text, width):
    """The text, its middle left out where it is wider: ends tell layers."""
    if cells(text) <= width:
        return text
    end = width * 3 // 5
    return _first(text, width - end - 1) + "…" + _first(text[::-1], end)[::-1]


def _first(text, width):
    for at, c in enumerate(text):
        width -= _cells_of(c)
        if width < 0:
            return text[:at]
    return text


def label(row):
    return _GAP * row.level + printable(row.name)


def joined(notes, width):
    """As many notes as fit, and "…" for the others."""
    kept = list(map(printable, notes))
    text = ", ".join(kept)
    while cells(text) > width and len(kept) > 1:
        kept.pop()
        text = ", ".join(kept) + ", …"
    return cut(text, width)


def widths(table, width, bar=0):
    """Widths in a terminal of `width`; a bar of `bar` if there is room."""
    numbers = tuple(
        max(map(cells, (title, *(row.cells[i] for row in table.rows))))
        for i, title in enumerate(table.titles[1:]))
    room = width - sum(numbers) - len(_GAP) * len(numbers)
    name = max(map(cells, (table.titles[0], *map(label, table.rows))))
    notes = max((cells(", ".join(map(printable, row.notes)))
                 for row in table.rows), default=0)
    notes = max(notes, cells(table.notes)) if notes else 0
    if bar and min(name, _LEAST * 2) + bar + len(_GAP) > room:
        bar = 0
    room -= bar + len(_GAP) if bar else 0
    if notes:
        # Names come first, but leave two fifths to notes that need it.
        rest = room - min(name, max(room * 3 // 5, _LEAST)) - len(_GAP)
        notes = min(notes, rest) if rest >= _LEAST else 0
        room -= notes + len(_GAP) if notes else 0
    return Widths(min(name, max(room, _LEAST)), numbers, bar, notes)


def text(table, width):
    """The lines of it."""
    found = widths(table, width)

    def line(name, numbers, notes):
        name = cut(name, found.name)
        out = name + " " * (found.name - cells(name))
        for number, wide in zip(numbers, found.cells):
            out += _GAP + " " * (wide - cells(number)) + number
        if found.notes and notes:
            out += _GAP + joined(notes, found.notes)
        return out.rstrip()

    if any(table.titles):
        yield line(table.titles[0], table.titles[1:],
                   (table.notes,) if table.notes else ())
    for row in table.rows:
        yield line(label(row), row.cells, row.notes)
    if table.rest:
        yield table.rest
