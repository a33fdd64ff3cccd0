# SPDX-License-Identifier: Apache-2.0
"""A tree of bytes for people: modules below modules, the largest first.

Repeated layers are one line: children that are numbered in a row and alike
(the same names and categories below them, whatever their bytes, but none grows
where another shrinks) are shown as "0–31 × 32", with the sum of their bytes. A part that holds nothing itself and
has one part below it shares that one's line: "net.layers.0–31 × 32".
"""

import dataclasses
import re

from stratalloc._rendering import table as _table
from stratalloc.sizes import format_size


@dataclasses.dataclass(frozen=True)
class Column:
    """Numbers of every row: `show` makes text of one.

    `weighs`: it says which rows are the largest, by its absolute value.
    """

    title: str
    show: object = format_size
    weighs: bool = True


_DEEPEST = 64  # levels; what is deeper is one name

BYTES = (Column("bytes"),)


class Node:
    """One part of a path: what it holds itself, and what is below it.

    `total` has a sum per column; `weight` the sum of absolute values, of the
    columns that weigh: where numbers may be negative, a part that changed much
    may have a total of 0. A node never weighs less than one below it.
    """

    __slots__ = ("name", "before", "own", "below", "total", "weight")

    def __init__(self, name, before, columns):
        self.name = name
        self.before = before  # what separates it from the path above: . or /
        self.own = {}  # category -> numbers
        self.below = {}  # name -> Node
        self.total = [0] * columns
        self.weight = [0] * columns

    def add(self, other):
        """What `other` holds is here too; the two are alike."""
        _add(self.total, other.total)
        _add(self.weight, other.weight)
        for category, sizes in other.own.items():
            _add(self.own.setdefault(category, [0] * len(sizes)), sizes)
        for name, node in other.below.items():
            mine = self.below.setdefault(
                name, Node(name, node.before, len(self.total)))
            mine.add(node)

    def shape(self):
        """What must be alike in repeated layers."""
        return (frozenset((category, sizes[0] < 0)
                          for category, sizes in self.own.items()),
                frozenset((name, node.shape())
                          for name, node in self.below.items()))

    def categories(self):
        """category -> numbers, of everything in it."""
        found = {category: list(sizes) for category, sizes in self.own.items()}
        for node in self.below.values():
            for category, sizes in node.categories().items():
                _add(found.setdefault(category, [0] * len(sizes)), sizes)
        return found


def _add(to, sizes):
    for i, size in enumerate(sizes):
        to[i] += size


def parts(path):
    """The names that a path consists of, the outermost first."""
    return [name for _, name in _split(path)]


def paths(path):
    """Of each of parts(path) the path that ends with it, as deep as a tree is;
    the last one is the path itself, so that no two paths have it alike."""
    found = [one.end() for one in _NAME.finditer(path)]
    if path.startswith("(") or len(found) < 2:
        return [path]
    return [*(path[:end] for end in found[:-1][:_DEEPEST - 1]), path]


_NAME = re.compile("[^./]+")


def _split(path):
    """[(what stands before it, name)]."""
    if path.startswith("("):
        return [("", path)]  # "(no scope)" and its like
    # A path without a name in it is one.
    return re.findall(r"([./]?)([^./]+)", path) or [("", path)]


def _levels(path):
    """_split(), and no deeper than a walk goes: scopes nest at will."""
    found = _split(path)
    if len(found) > _DEEPEST:
        rest = found[_DEEPEST - 1:]
        found[_DEEPEST - 1:] = [
            (rest[0][0], rest[0][1] + "".join(map("".join, rest[1:])))]
    return found


def is_number(name):
    """As a list of modules counts: no "01", whose order is somebody's own."""
    return (name.isascii() and name.isdecimal() and len(name) < 10
            and str(int(name)) == name)


def folded(node):
    """[(name, Node)]: the children, repeated ones as one, largest first."""
    runs = []
    for number, child in sorted(((int(name), child)
                                 for name, child in node.below.items()
                                 if is_number(name)), key=lambda one: one[0]):
        last = runs[-1] if runs else None
        if (last and last[-1][0] + 1 == number
                and last[-1][1].shape() == child.shape()):
            last.append((number, child))
        else:
            runs.append([(number, child)])
    children = [(name, child) for name, child in node.below.items()
                if not is_number(name)]
    for run in runs:
        if len(run) == 1:
            children.append((run[0][1].name, run[0][1]))
            continue
        merged = Node("", run[0][1].before, len(node.total))
        for _, child in run:
            merged.add(child)
        children.append((f"{run[0][0]}–{run[-1][0]} × {len(run)}", merged))
    return sorted(children, key=lambda child: (-max(child[1].weight),
                                               _table.natural(child[0])))


@dataclasses.dataclass(frozen=True)
class Line:
    """One line: a node, and the index of the line that it is below."""

    name: str
    level: int
    node: Node
    above: int | None


class Tree:
    """The tree of rows (path, category, number of each column).

    heading: the names' title. split: paths consist of names; else each is one.
    Rows of zeros do not exist.
    """

    def __init__(self, rows, columns=BYTES, heading="", split=True):
        self.columns, self.heading = columns, heading
        self.root = Node("total", "", len(columns))
        for path, category, *sizes in rows:
            if any(sizes):
                self._insert(_levels(path) if split else [("", path)],
                             category, sizes)

    def _insert(self, path, category, sizes):
        weight = [abs(size) if column.weighs else 0
                  for size, column in zip(sizes, self.columns)]
        node = self.root
        _add(node.total, sizes)
        _add(node.weight, weight)
        for before, name in path:
            node = node.below.setdefault(
                name, Node(name, before, len(self.columns)))
            _add(node.total, sizes)
            _add(node.weight, weight)
        _add(node.own.setdefault(category, [0] * len(sizes)), sizes)

    def lines(self, depth=None):
        """[Line]: the total, and `depth` levels below it; None: all."""
        found = []

        def put(name, level, node, above):
            at = len(found)
            found.append(Line(name, level, node, above))
            if depth is not None and level >= depth:
                return
            for child_name, child in folded(node):
                put(*_shared(child_name, child, level), at)

        def _shared(name, node, level):
            # Not behind a count: "0–31 × 32.mlp" reads as a fraction.
            while (node.name and not node.own
                   and len(below := folded(node)) == 1):
                child_name, child = below[0]
                name, node = name + child.before + child_name, child
            return name, level + 1, node

        put("total", 0, self.root, None)
        return found

    def table(self, depth=None, most=None, more=""):
        """Of lines(depth), `most` of them; what is left out is told in the
        last, and `more` is how to see it. The largest stay, whatever their
        level."""
        lines = self.lines(depth)
        kept = set(range(len(lines)))
        if most is not None and len(lines) > most:
            # A node is never larger than its parent, so these are a tree too.
            kept = set(sorted(kept, key=lambda i: (-max(lines[i].node.weight),
                                                   i))[:max(most - 1, 1)])
        rest = ""
        if len(kept) < len(lines):
            size = sum(line.node.total[0] for i, line in enumerate(lines)
                       if i not in kept and line.above in kept)
            rest = (f"and {len(lines) - len(kept)} smaller, "
                    f"{self.columns[0].show(size)}" + (more and f"; {more}"))
        return _table.Table(
            (self.heading, *(column.title for column in self.columns)),
            [self._row(lines[i]) for i in sorted(kept)], rest, "by category")

    def _row(self, line):
        node = line.node
        found = sorted(((max(map(abs, sizes)), category, sizes)
                        for category, sizes in self._weighing(node)),
                       key=lambda one: (-one[0], one[1]))
        found = [one for one in found if one[0]]
        show = self.columns[0].show
        notes = tuple(f"{category} {show(max(sizes, key=abs))}"
                      for _, category, sizes in found)
        if [category for _, category, _ in found] == [line.name]:
            notes = ()  # the line has said it
        whole = max(self.root.weight)
        return _table.Row(
            line.name,
            tuple(column.show(number)
                  for column, number in zip(self.columns, node.total)),
            notes, line.level, max(node.weight) / whole if whole else 0.0)

    def _weighing(self, node):
        for category, sizes in node.categories().items():
            yield category, [size for size, column in zip(sizes, self.columns)
                             if column.weighs]
