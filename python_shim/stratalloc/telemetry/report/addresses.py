# SPDX-License-Identifier: Apache-2.0
"""addresses(): what was reserved at a moment, block by block, and who kept it.

A unit of memory (a segment, or a handle of one that is mapped piece by piece)
that is partly free is stranded: whoever lives in it pins it.
"""

import numpy as np

from stratalloc._rendering.table import natural
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.report.bounds import name

ALLOCATED, PENDING, FREE, SEVERAL = range(4)
_STATES = {model.ACTIVE: ALLOCATED, model.PENDING: PENDING, model.FREE: FREE}
_PINNERS = 40


def addresses(walked, moment, bounds, stacks):
    """{"segments", "owners", "not_shown", "pinners"}.

    A segment is [address, size, pool, blocks], a block [offset, size, state,
    owner, requested, began, stack] with the index of its (layer, category), ns
    and the number of its stack (bounds.NOT_KNOWN or NO_ROOM without one; the
    largest blocks have theirs first); of a FREE one [offset, size, state, bytes of it
    that are stranded]; of SEVERAL small ones together [offset, size, state, how
    many, bytes of theirs that are free].
    """
    segments = replay.segments_at(walked, moment)
    owners, stays = _Owners(walked.run), _stays(walked, moment)
    shown = set(sorted(range(len(segments)), key=lambda i: -segments[i].size)[
        :bounds.segments])
    largest = sorted((block for i in shown for block in segments[i].blocks),
                     key=lambda block: -block.size)[:bounds.blocks]
    for one in largest:
        if one.state != model.FREE:
            stacks.add(one.site)
    large = {id(one) for one in largest}
    told = []
    for i in sorted(shown):
        one = segments[i]
        told.append([f"{one.address:#x}", one.size, _pool(walked.run, one.pool),
                     _blocks(one, _unit(walked, one), large, owners, stays,
                             stacks)])
    rest = [one for i, one in enumerate(segments) if i not in shown]
    return {"segments": told, "owners": owners.table,
            "not_shown": {"segments": len(rest),
                          "bytes": sum(one.size for one in rest)},
            "pinners": _pinners(walked, moment, min(_PINNERS, bounds.rows))}


class _Owners:
    def __init__(self, run):
        self._run, self.table, self._known = run, [], {}

    def add(self, scope, category):
        found = self._known.get((scope, category))
        if found is None:
            found = self._known[scope, category] = len(self.table)
            self.table.append([name(self._run.scopes[scope]),
                               model.CATEGORIES[category]])
        return found


def _stays(walked, moment):
    """address -> (scope, category, ns of the beginning) of what is there."""
    which = walked.live(moment, "done")
    scope, category = walked.owners(which, moment)
    rows, times = walked.rows[which], walked.run.events["time"]
    begin = rows["begin"]
    began = np.full(len(rows), -1, "<i8")  # before the recording
    began[begin >= 0] = times[begin[begin >= 0]]
    return dict(zip(rows["address"].tolist(), zip(
        scope.tolist(), category.tolist(), began.tolist())))


def _pool(run, pool):
    one = run.pools[pool]
    return (f"stream {one.stream}" if one.owner == (0, 0)
            else f"stream {one.stream}, private pool {one.owner}")


def _unit(walked, segment):
    return walked.unit(segment) if segment.expandable else segment.size


def _stranded(segment, block, unit):
    """Bytes of a free block that share a unit with what is not free."""
    begin = block.address - segment.address
    end = begin + block.size
    first = -(-begin // unit) * unit
    last = end if end == segment.size else end // unit * unit
    return block.size - max(0, last - first)


def _blocks(segment, unit, large, owners, stays, stacks):
    """`large`: ids of those that are told one by one."""
    told, small = [], []

    def together():
        if len(small) == 1:
            told.append(single(small[0]))
        elif small:
            told.append([small[0].address - segment.address,
                         sum(one.size for one in small), SEVERAL, len(small),
                         sum(one.size for one in small
                             if one.state == model.FREE)])
        small.clear()

    def single(one):
        said = [one.address - segment.address, one.size, _STATES[one.state]]
        if one.state == model.FREE:
            return [*said, _stranded(segment, one, unit)]
        scope, category, began = stays.get(
            one.address, (one.scope, one.category, -1))
        return [*said, owners.add(scope, category), one.requested, began,
                stacks.add(one.site)]

    for one in segment.blocks:
        if id(one) in large:
            together()
            told.append(single(one))
        else:
            small.append(one)
    together()
    return told


def _pinners(walked, moment, most):
    """[[layer, category, blocks, their bytes, free bytes beside them, free
    bytes that they alone pin]], those that pin most first, and the sum."""
    which = walked.live(moment, "done")
    rows = walked.rows[which]
    order = np.argsort(rows["address"], kind="stable")
    scope, category = (one[order].tolist()
                       for one in walked.owners(which, moment))
    begins = rows["address"][order].astype("<i8")
    ends = begins + rows["size"][order]
    found, total = {}, 0
    for low, high, inside in _units(walked, moment, begins, ends):
        used = np.minimum(ends[inside], high) - np.maximum(begins[inside], low)
        free = high - low - int(used.sum())
        if free <= 0:
            continue
        total += free
        there = {}
        for i, size in zip(range(inside.start, inside.stop), used.tolist()):
            one = there.setdefault((scope[i], category[i]), [0, 0])
            one[0] += 1
            one[1] += size
        for key, (count, size) in there.items():
            sums = found.setdefault(key, [0, 0, 0, 0])
            for at, more in enumerate((count, size, free,
                                       free if len(there) == 1 else 0)):
                sums[at] += more
    rows = sorted(([name(walked.run.scopes[key[0]]), model.CATEGORIES[key[1]],
                    *sums] for key, sums in found.items()),
                  key=lambda row: (-row[5], -row[4], natural(row[0]), row[1]))
    return {"stranded": total, "rows": rows[:most],
            "owners": len(rows)}


def _units(walked, moment, begins, ends):
    """(low, high, slice of blocks) of units in which something lives."""
    for one in walked.ranges(moment):
        unit = _unit(walked, one)
        first, last = np.searchsorted(begins, [one.address, one.end])
        first = int(first)
        if first and ends[first - 1] > one.address:
            first -= 1
        busy = sorted({number for i in range(first, int(last)) for number in
                       _touched(one, unit, int(begins[i]), int(ends[i]))})
        for number in busy:
            low = one.address + number * unit
            high = min(low + unit, one.end)
            # Blocks do not overlap: their ends are in order, too.
            yield low, high, slice(
                int(np.searchsorted(ends, low, "right")),
                int(np.searchsorted(begins, high, "left")))


def _touched(one, unit, begin, end):
    return range((max(begin, one.address) - one.address) // unit,
                 -(-(min(end, one.end) - one.address) // unit))
