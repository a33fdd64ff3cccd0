# SPDX-License-Identifier: Apache-2.0
"""A tree of bytes for people: modules below modules, the largest first.

Repeated layers are one line: children that are numbered in a row and alike
(the same names and categories below them, whatever their bytes) are shown as
"0–31 × 32", with the sum of their bytes.
"""

import re

from stratalloc.settings import format_size

_WIDTH = 44  # columns of a name with its indentation
_CATEGORIES = 2  # of a line, the largest


class Node:
    """One part of a path: what it holds itself, and what is below it.

    Bytes are lists of one number per column of the table.
    """

    __slots__ = ("name", "own", "below", "total")

    def __init__(self, name, columns):
        self.name = name
        self.own = {}  # category -> bytes
        self.below = {}  # name -> Node
        self.total = [0] * columns

    def add(self, other):
        """What `other` holds is here too; the two are alike."""
        _add(self.total, other.total)
        for category, sizes in other.own.items():
            _add(self.own.setdefault(category, [0] * len(sizes)), sizes)
        for name, node in other.below.items():
            mine = self.below.setdefault(name, Node(name, len(self.total)))
            mine.add(node)

    def shape(self):
        """What must be alike in repeated layers."""
        return (frozenset(self.own),
                frozenset((name, node.shape())
                          for name, node in self.below.items()))

    def categories(self):
        """category -> bytes, of everything in it."""
        found = {category: list(sizes) for category, sizes in self.own.items()}
        for node in self.below.values():
            for category, sizes in node.categories().items():
                _add(found.setdefault(category, [0] * len(sizes)), sizes)
        return found


def _add(to, sizes):
    for i, size in enumerate(sizes):
        to[i] += size


def build(rows, columns):
    """The tree of (path, category, bytes of each column)."""
    root = Node("total", columns)
    for path, category, *sizes in rows:
        node = root
        _add(node.total, sizes)
        for part in parts(path):
            node = node.below.setdefault(part, Node(part, columns))
            _add(node.total, sizes)
        _add(node.own.setdefault(category, [0] * columns), sizes)
    return root


def parts(path):
    """The names that a path consists of, the outermost first."""
    if path.startswith("("):
        return [path]  # "(no scope)" and its like
    return [_printable(part) for part in re.split(r"[./]", path) if part]


def _printable(name):
    return "".join(c if c.isprintable() else "?" for c in name)


def _is_number(name):
    return name.isdecimal() and name.isascii()


def folded(node):
    """[(name, Node)]: the children, repeated ones as one, largest first."""
    runs = []
    for number, child in sorted((int(name), child)
                                for name, child in node.below.items()
                                if _is_number(name)):
        last = runs[-1] if runs else None
        if (last and last[-1][0] + 1 == number
                and last[-1][1].shape() == child.shape()):
            last.append((number, child))
        else:
            runs.append([(number, child)])
    children = [(name, child) for name, child in node.below.items()
                if not _is_number(name)]
    for run in runs:
        if len(run) == 1:
            children.append((run[0][1].name, run[0][1]))
            continue
        merged = Node("", len(node.total))
        for _, child in run:
            merged.add(child)
        children.append((f"{run[0][0]}–{run[-1][0]} × {len(run)}", merged))
    return sorted(children, key=lambda child: (-max(child[1].total), child[0]))


def lines(rows, columns=("bytes",), depth=None, most=None):
    """Text: a header, a line for the total, then one for each node with bytes.

    rows: (path, category, bytes of each column). depth: levels below the
    total; None: all. most: lines; what is left out is counted in the last.
    The largest nodes are shown, whatever their level.
    """
    flat = list(_flatten(build(rows, len(columns)), "total", 0, depth))
    kept = range(len(flat))
    if most is not None and len(flat) > most:
        # A node is never larger than its parent, so these are a tree too.
        kept = sorted(sorted(kept, key=lambda i: (-max(flat[i][2].total), i))
                      [:max(most - 1, 1)])
    yield f"{'':<{_WIDTH}}" + "".join(f" {name:>11}" for name in columns)
    for i in kept:
        yield _line(*flat[i])
    if len(kept) < len(flat):
        yield (f"and {len(flat) - len(kept)} smaller; text(all=True) or "
               "depth= has them")


def _flatten(node, name, level, depth):
    yield name, level, node
    if depth is not None and level >= depth:
        return
    for child_name, child in folded(node):
        if max(child.total):
            yield from _flatten(child, child_name, level + 1, depth)


def _line(name, level, node):
    label = "  " * level + name
    if len(label) > _WIDTH:
        end = _WIDTH * 3 // 5
        label = label[:_WIDTH - end - 1] + "…" + label[-end:]
    found = sorted(((max(sizes), category) for category, sizes
                    in node.categories().items() if max(sizes)), reverse=True)
    text = ", ".join(f"{category} {format_size(size)}"
                     for size, category in found[:_CATEGORIES])
    if len(found) > _CATEGORIES:
        text += ", …"
    return (f"{label:<{_WIDTH}}"
            + "".join(f" {format_size(size):>11}" for size in node.total)
            + f"  {text}").rstrip()
