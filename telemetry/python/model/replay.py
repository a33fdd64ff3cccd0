# SPDX-License-Identifier: Apache-2.0
"""Replay: one device of a Run, walked: who held what at any event.

A moment is the index of an event of the run and means "right after it"; BEFORE
is the start. `allocated` ends when a free is asked for, `active` and `requested`
when it has completed, as in torch. All sums are exact where the run is: where
neither start nor end is known, what was there before is not in them.

Works on columns: a million events take about a second. Nothing here changes the
run.
"""

import dataclasses
import functools

import numpy as np

from stratalloc.telemetry import lifetimes, model
from stratalloc.telemetry.lifetimes import BEFORE
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.ranges import Ranges

RELABELLED = np.dtype([("row", "<i8"), ("event", "<i8"), ("scope", "<u4"),
                       ("category", "u1")])  # row: index of Replay.rows
_UNIT = 2 << 20  # what an expandable segment gives back at least


@dataclasses.dataclass(frozen=True)
class Holder:
    """Blocks with one owner: indices of the run's scopes, CATEGORIES, sites."""

    scope: int
    category: int
    site: int
    bytes: int  # of blocks
    requested: int
    count: int


@dataclasses.dataclass(frozen=True)
class Reserved:
    """What reserved memory consists of; the parts add up to `total`."""

    total: int
    allocated: int  # blocks, with `rounding` in it
    rounding: int
    pending: int  # frees that wait for their streams
    releasable: int  # free, and could be given back
    stranded: int  # free, and cannot: something lives in the same unit


class Replay:
    """See the module.

    Attributes:
      rows: lifetimes.ROW, every block in the order of its beginning.
      faults: [lifetimes.Fault].
      anchored: whether what was there at the start is known or follows from
        the end. Without it sums are those of what the events tell.
    """

    def __init__(self, run, device):
        self.run, self.index = run, device
        self.device = run.device(device) or model.Device(device, start=None)
        start, end = self.device.start, self.device.end
        if run.dropped and end is not None:
            start = None  # what was dropped lies between it and the events
        self._start = start
        self.anchored = start is not None or end is not None
        self.rows, self.faults = lifetimes.of(
            run, device, None if start is None else blocks(start),
            None if end is None else blocks(end))
        kinds = run.events["kind"]
        self._segments = np.flatnonzero(
            (kinds >= Kind.SEGMENT_ALLOC) & (kinds <= Kind.SEGMENT_UNMAP)
            & (run.events["device"] == device))

    @property
    def start(self):
        """Segments of the start, with their blocks and what is free between
        them: as recorded, or else as they follow from the end."""
        if self._start is not None:
            return tuple(self._start)
        return segments_at(self, BEFORE)

    # Curves: one number per event, after it; `base` is the one before all.

    @functools.cached_property
    def allocated(self):
        return self._curve("size", "asked")

    @functools.cached_property
    def active(self):
        return self._curve("size", "done")

    @functools.cached_property
    def requested(self):
        return self._curve("requested", "done")

    @functools.cached_property
    def reserved(self):
        events = self.run.events
        changes = np.zeros(len(events), "<i8")
        if len(self._segments):
            ours = events[self._segments]
            grows = ((ours["kind"] == Kind.SEGMENT_ALLOC)
                     | (ours["kind"] == Kind.SEGMENT_MAP))
            sizes = ours["bytes"].astype("<i8")
            changes[self._segments] = np.where(grows, sizes, -sizes)
        if self._start is not None:
            base = sum(one.size for one in self._start)
        elif self.device.end is not None:
            base = sum(one.size for one in self.device.end) - int(changes.sum())
        else:
            base = 0
            if len(changes):  # at least what was given back must have been there
                base = max(0, -int(np.minimum(np.cumsum(changes).min(), 0)))
        return Curve(base, base + np.cumsum(changes))

    def _curve(self, amount, until):
        last = len(self.run.events)
        rows = self.rows
        changes = np.zeros(last, "<i8")
        base = 0
        for where, sign in ((rows["begin"], 1), (rows[until], -1)):
            inside = (where >= 0) & (where < last)
            # Each event begins or ends one block of a device at most, unless
            # the events are at fault.
            np.add.at(changes, where[inside], sign * rows[amount][inside])
            base += sign * int(rows[amount][where == BEFORE].sum())
        return Curve(base, base + np.cumsum(changes))

    @functools.cached_property
    def peak(self):
        """The first moment at which most was allocated."""
        return self.allocated.peak()

    @functools.cached_property
    def reserved_peak(self):
        return self.reserved.peak()

    def live(self, moment, until="asked"):
        """Indices of the rows that are allocated then; until="done": active."""
        rows = self.rows
        return np.flatnonzero((rows["begin"] <= moment)
                              & (rows[until] > moment))

    def owners(self, which, moment):
        """(scope, category) columns of rows, as they were at a moment."""
        changes = self.relabels
        changes = changes[:np.searchsorted(changes["event"], moment, "right")]
        found = []
        for name in ("scope", "category"):
            column = self.rows[name].copy()
            column[changes["row"]] = changes[name]  # of several the last one
            found.append(column[which])
        return tuple(found)

    @functools.cached_property
    def relabels(self):
        """Column of RELABELLED: who owns a block from an event on."""
        rows, events = lifetimes.relabels(self.run, self.index, self.rows)
        found = np.zeros(len(rows), RELABELLED)
        found["row"], found["event"] = rows, events
        for name in ("scope", "category"):
            found[name] = self.run.events[name][events]
        return found

    def holders(self, moment=None):
        """[Holder] at a moment (the peak), the largest first. Their bytes add
        up to `allocated` there."""
        moment = self.peak if moment is None else moment
        which = self.live(moment)
        return self._grouped(which, *self.owners(which, moment))

    def churn(self):
        """[Holder]: what was allocated in all, by who asked for it. Blocks of
        the start, and those that moved between tiers, are not."""
        which = np.flatnonzero((self.rows["begin"] >= 0) & ~self.rows["moved"])
        return self._grouped(which, self.rows["scope"][which],
                             self.rows["category"][which])

    def _grouped(self, which, scope, category):
        if not len(which):
            return []
        site = self.rows["site"][which]
        order = np.lexsort((site, category, scope))
        keys = np.stack([column[order].astype("<i8")
                         for column in (scope, category, site)])
        begins = np.flatnonzero(np.append(
            True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
        size = np.add.reduceat(self.rows["size"][which][order], begins)
        asked = np.add.reduceat(self.rows["requested"][which][order], begins)
        count = np.diff(np.append(begins, len(order)))
        found = [Holder(*map(int, one)) for one in zip(
            *keys[:, begins], size, asked, count)]
        return sorted(found, key=lambda one: (-one.bytes, one.scope,
                                              one.category, one.site))

    def ranges(self, moment):
        """Ranges that were reserved then."""
        if self._start is not None or self.device.end is None:
            ranges = Ranges(self._start or ())
            for at in self._segments[self._segments <= moment]:
                ranges.apply(self.run.events[at])
        else:
            ranges = Ranges(self.device.end)
            for at in self._segments[self._segments > moment][::-1]:
                ranges.apply(self.run.events[at], backwards=True)
        return ranges

    def reserved_parts(self, moment=None):
        """Reserved, at a moment (the peak of what is allocated)."""
        moment = self.peak if moment is None else moment
        rows = self.rows
        live, held = self.live(moment), self.live(moment, "done")
        allocated = int(rows["size"][live].sum())
        active = int(rows["size"][held].sum())
        total = max(int(self.reserved.at(moment)), active)
        releasable = min(_releasable(self.ranges(moment), rows[held],
                                     self.unit), total - active)
        return Reserved(
            total, allocated, allocated - int(rows["requested"][live].sum()),
            active - allocated, releasable, total - active - releasable)

    def unit(self, one):
        """Bytes in which a Range is given back."""
        return next((handle for address, size, handle in self.device.regions
                     if address <= one.address < address + size), _UNIT)

    def time(self, moment):
        """ns since the run began."""
        return 0 if moment < 0 else int(self.run.events["time"][moment])


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number after each event, `base` before the first."""

    base: int
    after: np.ndarray

    def at(self, moment):
        return self.base if moment < 0 else int(self.after[moment])

    def peak(self):
        if not len(self.after) or self.base >= self.after.max():
            return BEFORE
        return int(self.after.argmax())

    def most(self):
        return self.at(self.peak())

    def last(self):
        return self.at(len(self.after) - 1)


def devices(run):
    """Indices of the devices that a run knows anything of, in order."""
    found = {one.index for one in run.devices}
    kinds = run.events["kind"]
    ours = (kinds <= Kind.SEGMENT_UNMAP) | (kinds == Kind.OOM)
    found.update(np.unique(run.events["device"][ours]).tolist())
    return sorted(found)


def busiest(run):
    """The Replay of the device that held most at any event; a tier below is
    no device to look at unless it is asked for."""
    cards = [one for one in devices(run)
             if not (run.device(one) and run.device(one).tier)]
    return max((Replay(run, one) for one in cards or [0]),
               key=lambda one: (one.allocated.most(), -one.index))


def blocks(segments):
    """[Block] of segments: those that are not free."""
    return [block for segment in segments for block in segment.blocks
            if block.state != model.FREE]


def _releasable(ranges, held, unit_of):
    """Bytes of units in which nothing lives: whole segments, or whole units
    of those that are mapped piece by piece."""
    order = np.argsort(held["address"], kind="stable")
    begins = held["address"][order].astype("<i8")
    ends = begins + held["size"][order]
    total = 0
    for one in ranges:
        low, high = np.searchsorted(begins, [one.address, one.end])
        if low == high:
            total += one.size
        elif one.expandable:
            unit = unit_of(one)
            edges = np.concatenate([[one.address], ends[low:high],
                                    begins[low:high], [one.end]])
            count = high - low + 1
            for free, busy in zip(edges[:count], edges[count:]):
                first = -(-(int(free) - one.address) // unit) * unit
                last = (int(busy) - one.address) // unit * unit
                if int(busy) == one.end:
                    last = one.size
                total += max(0, last - first)
    return total


def segments_at(replay, moment):
    """Tuple of Segment, as they were at a moment."""
    which = replay.live(moment, "done")
    rows = replay.rows[which]
    rows["scope"], rows["category"] = replay.owners(which, moment)
    order = np.argsort(rows["address"], kind="stable")
    rows = rows[order]
    addresses = rows["address"].astype("<i8")
    return tuple(
        model.Segment(one.address, one.size, one.pool, one.expandable,
                      one.small, tuple(_filled(
                          one, rows[slice(*np.searchsorted(
                              addresses, [one.address, one.end]))], moment)))
        for one in replay.ranges(moment))


def _filled(one, rows, moment):
    at = one.address
    for row in rows:
        address, size = int(row["address"]), int(row["size"])
        size = min(size, one.end - address)
        if address < at or size <= 0:
            continue  # at fault
        if address > at:
            yield model.Block(at, address - at, 0, model.FREE)
        yield model.Block(
            address, size, min(int(row["requested"]), size),
            model.ACTIVE if row["asked"] > moment else model.PENDING,
            int(row["scope"]), int(row["category"]), int(row["site"]))
        at = address + size
    if at < one.end:
        yield model.Block(at, one.end - at, 0, model.FREE)
