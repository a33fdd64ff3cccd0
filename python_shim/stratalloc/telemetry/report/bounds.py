# SPDX-License-Identifier: Apache-2.0
"""Bounds: how much of a run a page has room for, whatever was recorded.

What does not fit is summed up, never left out in silence: rows have a last one
for the rest, drawings a number of what they do not show one by one.
"""

import dataclasses

from stratalloc._rendering import tree as _tree
from stratalloc.telemetry.exports.target import text

_LONGEST = 160  # characters of a name
_DEEPEST = 20  # levels of a layer's name
_LEAST = 8  # of each bound, however little room there is
_FRAMES = 24  # of a stack, the innermost
NOT_KNOWN, NO_ROOM = -1, -2  # in place of a stack's number


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Of one device."""

    points: int = 800  # of a curve
    marks: int = 200
    nodes: int = 1200  # of a flame graph
    segments: int = 300  # of a map
    blocks: int = 2500
    rows: int = 400  # of a table
    bars: int = 800  # of a lane of moves
    stacks: int = 400

    def shared(self, count):
        """Those of each of so many devices on one page."""
        if count <= 2:
            return self
        return Bounds(*(max(40, 2 * one // count)
                        for one in dataclasses.astuple(self)))

    def scaled(self, room):
        """Those of a page with so much of the room, 0 to 1."""
        if room >= 1:
            return self
        return Bounds(*(max(_LEAST, int(one * room))
                        for one in dataclasses.astuple(self)))


def name(said):
    """A name that every encoder takes, its middle left out where it is long."""
    said = text(str(said))
    if len(said) <= _LONGEST:
        return said
    half = _LONGEST // 2 - 1
    return f"{said[:half]} … {said[-half:]}"


def levels(scope):
    """The parts of a layer's name, the outermost first; the deepest as one."""
    parts = _tree.parts(scope)
    if len(parts) > _DEEPEST:
        parts[_DEEPEST - 1:] = [".".join(parts[_DEEPEST - 1:])]
    return [name(one) for one in parts]


class Stacks:
    """Stacks of sites by number, each frame's text once; `outer` has for each
    how many of its frames there is no room for."""

    def __init__(self, run, most):
        self._run, self._most = run, most
        self.frames, self.stacks, self.outer = [], [], []
        self._frames, self._stacks = {}, {}

    def add(self, site):
        """The number of a site's stack, NOT_KNOWN or NO_ROOM."""
        found = self._stacks.get(site)
        if found is not None:
            return found
        stack = self._run.stack(site)
        if not stack:
            return NOT_KNOWN
        if len(self.stacks) >= self._most:
            return NO_ROOM
        self._stacks[site] = len(self.stacks)
        self.stacks.append([self._frame(one) for one in stack[:_FRAMES]])
        self.outer.append(max(0, len(stack) - _FRAMES))
        return self._stacks[site]

    def _frame(self, one):
        where = f"{one.file}:{one.line}" if one.line else one.file
        said = name(f"{where} {one.function}".strip())
        found = self._frames.get(said)
        if found is None:
            found = self._frames[said] = len(self.frames)
            self.frames.append(said)
        return found
