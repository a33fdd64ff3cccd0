# SPDX-License-Identifier: Apache-2.0
"""A table for rich: the same lines, and on a terminal bars and colours.

Names and notes are Text, so that nothing in them is read as markup. A console
without colours (a pipe, NO_COLOR) gets no escape sequence at all.
"""

from rich.table import Table
from rich.text import Text

from stratalloc._rendering import table as _table

_BAR = 10  # cells
_EIGHTHS = " ▏▎▍▌▋▊▉"


def rendered(table, console, width):
    """A renderable that is `width` cells wide at most, where numbers let it."""
    colours = console.is_terminal and not console.no_color
    bars = console.is_terminal and not console.options.ascii_only
    bars = bars and any(row.share is not None for row in table.rows)
    found = _table.widths(table, width, _BAR if bars else 0)
    grid = Table(box=None, show_header=any(table.titles), show_edge=False,
                 pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True,
                 header_style=_style("dim", colours))
    grid.add_column(Text(_table.cut(table.titles[0], found.name)),
                    width=found.name, no_wrap=True)
    for title, wide in zip(table.titles[1:], found.cells):
        grid.add_column(Text(title), width=wide, no_wrap=True, justify="right")
    if found.bar:
        grid.add_column(width=found.bar, no_wrap=True,
                        style=_style("cyan", colours))
    if found.notes:
        grid.add_column(Text(_table.cut(table.notes, found.notes)),
                        width=found.notes, no_wrap=True,
                        style=_style("dim", colours))
    for row in table.rows:
        line = [Text(_table.cut(_table.label(row), found.name)),
                *map(Text, row.cells)]
        if found.bar:
            line.append(Text(bar(row.share, found.bar)))
        if found.notes:
            line.append(Text(_table.joined(row.notes, found.notes)))
        grid.add_row(*line, style=_style(
            "bold", colours and row.level == 0 and row.share is not None))
    yield grid
    if table.rest:
        yield Text(table.rest, style=_style("dim", colours))


def _style(name, colours):
    return name if colours else ""


def bar(share, width):
    """`share` of `width` cells, in eighths of a cell; something is a sliver."""
    if not share:
        return ""
    eighths = max(round(share * width * 8), 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
