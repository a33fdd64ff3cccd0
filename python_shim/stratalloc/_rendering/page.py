# SPDX-License-Identifier: Apache-2.0
"""A page: sentences, tables and trees, as text, for rich and as HTML; pictures
in HTML alone.

A tree has as many lines as the rest of the page leaves in the terminal, the
largest; all of them if asked.
"""

import sys

from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._rendering import table as _table
from stratalloc._rendering import table_html as _table_html
from stratalloc._rendering import tree as _tree

_SPARE = 3  # lines: the prompt, the command, one empty
_FEWEST = 8  # lines of a tree, however low the terminal is
_OF_HTML = 1000  # lines of a tree; a browser has no last line


class Page:
    """Parts, in order: str (one line), _table.Table, _tree.Tree or
    _plot_svg.Picture.

    depth: levels of a tree below its total; None: all of them, as many lines
    as there is room for, or all if `all`. more: how whoever reads it gets what
    is left out.
    """

    def __init__(self, parts, depth=None, all=False,  # noqa: A002
                 more="text(all=True) or text(depth=N) has them"):
        if depth is not None and (not isinstance(depth, int) or depth < 0):
            raise ValueError(f"stratalloc: depth={depth!r} is no number of "
                             "levels; give 0 (the total alone) or more")
        self.parts, self.depth, self.all, self.more = parts, depth, all, more

    def text(self, stream=None):
        """For the terminal of `stream`; None: of stdout."""
        width, height = _table.terminal(stream or sys.stdout)
        return "\n".join(
            line for part in self._made(height, pictures=False)
            for line in ([_table.printable(part)] if isinstance(part, str)
                         else _table.text(part, width)))

    def __rich_console__(self, console, options):
        from rich.text import Text

        from stratalloc._rendering import table_rich as _table_rich

        for part in self._made(options.height or console.size.height,
                               pictures=False):
            if isinstance(part, str):
                yield Text(_table.printable(part))
            else:
                yield from _table_rich.rendered(part, console,
                                                options.max_width)

    def html(self):
        return _table_html.page(self._made(None))

    def _made(self, height, pictures=True):
        """Sentences, tables and `pictures`; None: a page that has no height."""
        parts = [part for part in self.parts
                 if pictures or not isinstance(part, _plot_svg.Picture)]
        most = None
        if height is None:
            most = _OF_HTML
        elif not self.all and self.depth is None:
            others = sum(
                1 if not isinstance(part, _table.Table)
                else len(part.rows) + any(part.titles) + bool(part.rest)
                for part in parts)
            trees = sum(isinstance(part, _tree.Tree) for part in parts)
            # Of which one may be empty: its lines are not another's.
            most = max((height - _SPARE - others) // max(trees, 1), _FEWEST)
        return [part.table(self.depth, most, self.more)
                if isinstance(part, _tree.Tree) else part
                for part in parts]
