# SPDX-License-Identifier: Apache-2.0
"""residency(): on which tier the bytes of each layer were at a moment.

What is away follows from the events: handles from their moves, and blocks from
the ends that say they left, until they are back or freed. What was away before
the recording is not in it.
"""

import bisect

import numpy as np

from stratalloc._rendering.table import natural
from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report.bounds import name


def residency(walked, moment, most):
    """[[layer, category, bytes on the device, on the host, on disk]], the
    largest first; of more than `most` the last rows are the rest of each
    category, so that a sum of one is the same whatever there is room for."""
    found = {}
    for one in walked.holders(moment):
        sums = found.setdefault((one.scope, one.category), [0, 0, 0])
        sums[0] += one.bytes
    for scope, category, tier, size in away(walked, moment):
        found.setdefault((scope, category), [0, 0, 0])[tier] += size
    rows = sorted(([name(walked.run.scopes[key[0]]), model.CATEGORIES[key[1]],
                    *sums] for key, sums in found.items()),
                  key=lambda row: (-sum(row[2:]), natural(row[0]), row[1]))
    if len(rows) > most:
        kept = max(0, most - len({row[1] for row in rows}))
        rows[kept:] = _rest(rows[kept:])
    return rows


def _rest(rows):
    """A row of each category of theirs."""
    found = {}
    for _, category, *sizes in rows:
        count, *sums = found.get(category, (0, 0, 0, 0))
        found[category] = [count + 1, *map(sum, zip(sums, sizes))]
    return sorted(([f"({count} smaller)", category, *sums] for
                   category, (count, *sums) in found.items()),
                  key=lambda row: (-sum(row[2:]), row[1]))


def away(walked, moment):
    """[(scope, category, tier, bytes)] of blocks, or of parts of them, that are
    on a tier below the device then."""
    handles = _handles(walked.run, walked.index, moment)
    starts = [one[0] for one in handles]
    found = []
    for address, (size, scope, category, here) in _left(
            walked, moment).items():
        missing = size - here
        at = max(0, bisect.bisect_right(starts, address) - 1)
        behind = bisect.bisect_left(starts, address + size)
        there = handles[at:behind]
        # Of a handle on its way the move may be told before its blocks are.
        for low, length, tier, _ in sorted(there, key=lambda one: one[3]):
            inside = min(min(low + length, address + size)
                         - max(low, address), missing)
            if inside > 0:
                found.append((scope, category, tier, inside))
                missing -= inside
        if missing:
            found.append((scope, category, 1, missing))
    return found


def _handles(run, index, moment):
    """[(address, bytes, tier, whether it came back)] of handles that moved, in
    order: where they are below the device, or were until they came back."""
    events = run.events[:moment + 1]
    ours = events[((events["kind"] == Kind.MOVE)
                   | (events["kind"] == Kind.DROPPED))
                  & (events["device"] == index)]
    last = {}
    for kind, address, size, category in zip(*(ours[one].tolist() for one in (
            "kind", "address", "bytes", "category"))):
        source, tier = model.ends(category)
        if kind == Kind.DROPPED:
            last.pop(address, None)
        elif tier or source:
            last[address] = size, tier or source, not tier
    return [(address, *last[address]) for address in sorted(last)]


def _left(walked, moment):
    """address -> (bytes, scope, category, bytes that are here) of blocks of
    which a part is away then, each as it was before it left."""
    events = walked.run.events[:moment + 1]
    moved = events["flags"] & (model.EVICTED | model.RESTORED) != 0
    blocks = events["kind"] <= Kind.FREE_COMPLETED
    pieces = np.unique(events["address"][moved & blocks])
    ours = events[(events["device"] == walked.index) & (
        (events["kind"] == Kind.FREED_AWAY) | (events["kind"] == Kind.RELABEL)
        | (blocks & (moved | np.isin(events["address"], pieces))))]
    left = _Left()
    for one in zip(*(ours[name].tolist() for name in (
            "kind", "flags", "address", "aux", "scope", "category"))):
        left.take(*one)
    return {address: (*one, left.here[address])
            for address, one in left.blocks.items()}


class _Left:
    """Blocks that left, walked event by event. Parts that stayed, or that came
    back before the rest, are blocks of events too: `_parts` knows whose."""

    def __init__(self):
        self.blocks = {}
        self._parts = {}  # address of a part -> that of its block
        self._parts_of = {}  # address of a block -> those of its parts
        self.here = {}  # address of a block -> bytes of it that are here
        self._starts = []

    def take(self, kind, flags, address, size, scope, category):
        if kind == Kind.RELABEL:
            if address in self.blocks:
                self.blocks[address] = (self.blocks[address][0], scope,
                                        category)
        elif kind == Kind.FREED_AWAY:
            self._end(address)
        elif kind == Kind.FREE_REQUESTED and not flags & (
                model.EVICTED | model.RESTORED):
            self._end(self._parts.get(address, address))
        elif kind == Kind.FREE_COMPLETED and flags & (
                model.EVICTED | model.RESTORED):
            whose = self._parts.pop(address, None)
            if whose is not None:
                self._parts_of[whose].discard(address)
                self.here[whose] -= size
            elif flags & model.EVICTED:
                self._begin(address, size, scope, category)
        elif kind == Kind.ALLOC:
            if flags & (model.EVICTED | model.RESTORED):
                self._part(address, size)
            else:
                self._end(address)  # whatever was there is of the past

    def _begin(self, address, size, scope, category):
        if address not in self.blocks:
            bisect.insort(self._starts, address)
        self.blocks[address] = size, scope, category
        self.here[address] = 0
        self._parts_of.setdefault(address, set())

    def _part(self, address, size):
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return
        whose = self._starts[at]
        if address >= whose + self.blocks[whose][0]:
            return
        self.here[whose] += size
        self._parts[address] = whose
        self._parts_of[whose].add(address)
        if self.here[whose] >= self.blocks[whose][0]:
            self._end(whose)  # all of it is here

    def _end(self, address):
        if self.blocks.pop(address, None) is None:
            return
        del self.here[address]
        del self._starts[bisect.bisect_left(self._starts, address)]
        for part in self._parts_of.pop(address):
            self._parts.pop(part, None)
