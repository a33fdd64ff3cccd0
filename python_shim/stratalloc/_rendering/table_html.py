# SPDX-License-Identifier: Apache-2.0
"""A page for notebooks: lines that open and close, no script, no link.

Colours are the page's own, so that it reads in the dark as well. Rows below a
row are inside its <details>; where a page keeps no style (some sites show
notebooks so) names and numbers stay in order, a line for each row.
"""

import html

from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._rendering import table as _table

_OPEN = 2  # levels that are open at first
_STYLE = """
.stratalloc{font-family:monospace;line-height:1.5;max-width:110ch}
.stratalloc .l{display:flex;gap:2ch;list-style:none}
.stratalloc summary{cursor:pointer}
.stratalloc .n{flex:1;min-width:0;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
.stratalloc .n::before{content:"";display:inline-block;width:2ch}
.stratalloc details>summary .n::before{content:"▸"}
.stratalloc details[open]>summary .n::before{content:"▾"}
.stratalloc .v{flex:none;width:12ch;text-align:right;white-space:nowrap}
.stratalloc .c{flex:none;width:36ch;opacity:.7;overflow:hidden;
text-overflow:ellipsis;white-space:nowrap}
.stratalloc .b{flex:none;width:8ch}
.stratalloc .b i{display:block;height:.6em;margin-top:.45em;min-width:1px;
background:currentColor;opacity:.4}
.stratalloc .h{opacity:.7;border-bottom:1px solid currentColor;margin-top:.5em}
.stratalloc p{margin:.3em 0}
"""


def page(parts):
    """HTML of sentences, tables and pictures."""
    return ('<div class="stratalloc"><style>' + _STYLE + "</style>"
            + "".join(map(_part, parts)) + "</div>")


def _part(part):
    if isinstance(part, str):
        return _sentence(part)
    if isinstance(part, _plot_svg.Picture):
        return part.svg()
    return "".join(_lines(part))


def _sentence(text):
    return f"<p>{_escaped(text)}</p>" if text else ""


def _lines(table):
    bars = any(row.share is not None for row in table.rows)
    notes = any(row.notes for row in table.rows)
    if any(table.titles):
        head = _table.Row(table.titles[0], table.titles[1:],
                          (table.notes,) if table.notes else ())
        yield f'<div class="l h">{_cells(head, bars, notes)}</div>'
    within = []  # levels of the details that are open
    for row, after in zip(table.rows, (*table.rows[1:], None)):
        while within and within[-1] >= row.level:
            within.pop()
            yield "</details>"
        line = _cells(row, bars, notes)
        if after is not None and after.level > row.level:
            within.append(row.level)
            yield ("<details open>" if row.level < _OPEN else "<details>")
            yield f'<summary class="l">{line}</summary>'
        else:
            yield f'<div class="l">{line}</div>'
    yield "</details>" * len(within)
    if table.rest:
        yield _sentence(table.rest)


def _cells(row, bars, notes):
    name = _escaped(row.name)
    out = [f'<span class="n" style="padding-left:{2 * row.level}ch" '
           f'title="{name}">{name}</span>']
    out += [f'<span class="v">{_escaped(cell)}</span>' for cell in row.cells]
    if bars:
        wide = f"{100 * (row.share or 0):.1f}%"
        out.append(f'<span class="b"><i style="width:{wide}"></i></span>'
                   if row.share else '<span class="b"></span>')
    if notes:
        out.append(f'<span class="c">{_escaped(", ".join(row.notes))}</span>')
    return " ".join(out)


def _escaped(text):
    return html.escape(_table.printable(text), quote=True)
