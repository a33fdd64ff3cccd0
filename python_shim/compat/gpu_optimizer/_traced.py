# SPDX-License-Identifier: Apache-2.0
"""Traced: what a Run comes to for a model: events, layers, sums.

Everything is worked out when it is first asked for, but where more happened
than may be kept: then when the trace has ended, layers, leaks and what would
help of all of it, and the newest events stay. Kept are at
most `most` events of 40 bytes, `most` of the run's 48, what is there at the
end, and a line per layer.

Nothing here knows which allocator ran. Fails only as telemetry does.
"""

import dataclasses
import functools

import numpy as np

from stratalloc.compat._package import (Kind, layers, lifetimes, model, owners,
                                        replay)
from stratalloc.compat.gpu_optimizer import _records, _told

# The model is not told by its name, nor a layer by that of no scope.
NO_LAYER = "(no layer)"
_ENDS = [0, -1]  # the rows at which a trace begins and ends


class Traced:
    """See the module.

    Attributes:
      run: telemetry's Run; of the newest events where there were too many and
        the trace has ended.
      happened: int, events in all, of those kept or not.
      lost: int, events of which nothing is known: overwritten before they were
        read.

    Args:
      names: of layers, [0] for none; entered: for each scope of the run the
        index of the layer that it is, charged: that it belongs to.
      reserves: whether its allocator keeps memory that is free; where it does
        not, what is reserved is what is allocated.
      devices: indices of those that are traced.
      ended: False: the trace goes on, and nobody keeps this for long.
    """

    def __init__(self, run, names, entered, charged, reserves, devices,
                 most, ended=True):
        self.run, self.names, self._reserves = run, names, reserves
        self._entered, self._charged = entered, charged
        self.devices, self._most = devices, most
        self.lost = int(run.dropped)
        self._table = self._rows = self.happened = None
        self._leaks = self._recommendations = None
        if ended and len(run.events) > most:
            self.table()  # of all: before some are given up
            self.leaks()
            self.recommendations()
            self.run = _newest(run, most)

    # What is asked for.

    def rows(self):
        """Columns of the events that are kept (_records.ROW)."""
        if self._rows is None:
            self._keep_rows()
            self._let_go()
        return self._rows

    def is_empty(self):
        """Whether nothing happened from the trace's beginning to its end."""
        self.rows()
        return self.happened == len(_ENDS) and not self.lost

    def table(self):
        """{"layers": {name: dict}, and the sums that the summary has}."""
        if self._table is None:
            if self._rows is None:
                self._keep_rows()
            self._table = {**self._sums,
                           "avg_fragmentation": self._fragmentation}
            self._let_go()
        return self._table

    def leaks(self):
        """telemetry's Leaks, of the first device."""
        if self._leaks is None:
            self._leaks = owners.leaks(self.run, self.devices[0])
        return self._leaks

    def recommendations(self):
        """[str], see _told."""
        if self._recommendations is None:
            self._recommendations = _told.recommendations(
                self.run, self.devices)
        return self._recommendations

    def _keep_rows(self):
        rows = self._all_rows
        self.happened = len(rows)
        # As many as MemoryEvents, whether they are kept or not.
        self._fragmentation = float(_records.fragmentations(rows).mean())
        self._rows = rows if self.happened <= self._most else rows[
            -self._most:].copy()

    def _let_go(self):
        """Of what was walked nothing stays: it is larger than the events."""
        for name in ("_walked", "_sums", "_all_rows"):
            self.__dict__.pop(name, None)

    # Worked out.

    @functools.cached_property
    def _walked(self):
        found = {index: replay.Replay(self.run, index)
                 for index in self.devices}
        for one in found.values() if not self._reserves else ():
            one.reserved = one.allocated
        return found

    def _curve(self, name):
        """(before, after each event) of the traced devices together."""
        curves = [getattr(one, name) for one in self._walked.values()]
        return (sum(one.base for one in curves),
                sum((one.after for one in curves),
                    np.zeros(len(self.run.events), "<i8")))

    @functools.cached_property
    def _sums(self):
        allocated, reserved = self._curve("allocated"), self._curve("reserved")
        found = layers(self.run, self._walked, (self.names, self._charged),
                       together=True, parents=_parents(self.names))
        peaks = [max(base, int(after.max(initial=0)))
                 for base, after in (allocated, reserved)]
        return {"layers": found, "peak_allocated": peaks[0],
                "peak_reserved": peaks[1], "held_at_peak": self._at_peak()}

    def _at_peak(self):
        """{layer's name: bytes of its own at the peak of each device}; what is
        nobody's of the model is None's."""
        found = {}
        for one in self._walked.values():
            for holder in one.holders():
                layer = int(self._charged[holder.scope])
                name = self.names[layer] if layer else None
                found[name] = found.get(name, 0) + holder.bytes
        return found

    @functools.cached_property
    def _all_rows(self):
        """Every event that a MemoryEvent is made of, between the moments at
        which the trace began and ended."""
        events = self.run.events
        kind = _kinds(self.run, self._entered, self.devices)
        at = np.flatnonzero(kind >= 0)
        rows = np.zeros(len(at) + len(_ENDS), _records.ROW)
        inner = rows[1:-1]
        inner["time"], inner["type"] = events["time"][at], kind[at]
        inner["device"] = events["device"][at]
        scope = events["scope"][at]
        inner["layer"] = np.where(
            kind[at] >= _records.ENTER, self._entered[scope],
            np.where(kind[at] == _records.SNAPSHOT, 0, self._charged[scope]))
        size = events["aux"][at].astype("<i8")
        inner["size"] = np.where(kind[at] <= _records.FREE, np.where(
            size > 0, size, lifetimes.rounded(events["bytes"][at])), 0)
        for name in ("allocated", "reserved"):
            base, after = self._curve(name)
            rows[name][0] = base
            inner[name] = after[at]
            rows[name][-1] = after[-1] if len(after) else base
        rows["type"][_ENDS] = _records.SNAPSHOT
        rows["time"][-1] = max(self.run.duration,
                               int(events["time"].max(initial=0)))
        rows["device"][_ENDS] = self.devices[0] if self.devices else 0
        return rows


def paths(model, names):
    """What scopes of a run are called where hooks name them: the model's class
    and a layer's name in it; as it is, names[0]."""
    return [names[0], *(".".join(filter(None, (type(model).__name__, name)))
                        for name in names[1:])]


def _parents(names):
    """For each layer the index of the innermost that contains it, of those that
    have a name here; 0 for none. A layer that several contain is inside of the
    one by which it is named: nobody knows for whom its backward runs.
    """
    place = {name: at for at, name in enumerate(names) if at}
    found = [0] * len(names)
    for at, name in enumerate(names):
        while at and name and not found[at]:
            name = name.rpartition(".")[0]
            found[at] = place.get(name, 0)
    return found


def _kinds(run, entered, devices):
    """For each event the type of its MemoryEvent, or -1 for none."""
    events = run.events
    kinds, found = events["kind"], np.full(len(events), -1, "i1")
    if not len(events):
        return found
    here = np.isin(events["device"], devices)
    moved = (events["flags"] & (model.EVICTED | model.RESTORED)) != 0
    # What moves between tiers, and what is taken from or given back to the
    # driver, changes the sums and is no allocation.
    changes = ((kinds <= Kind.FREE_REQUESTED) & moved) | (
        (kinds >= Kind.SEGMENT_ALLOC) & (kinds <= Kind.SNAPSHOT))
    found[changes & here] = _records.SNAPSHOT
    # Of a block in pieces each changes the sums; one of them is its free.
    found[(kinds == Kind.FREE_REQUESTED) & ~moved & here] = _records.SNAPSHOT
    found[(kinds == Kind.ALLOC) & ~moved & here] = _records.ALLOC
    frees = lifetimes.program_frees(run)
    found[frees[here[frees]]] = _records.FREE
    layer = entered[events["scope"]] > 0
    found[(kinds == Kind.SCOPE_ENTER) & layer] = _records.ENTER
    found[(kinds == Kind.SCOPE_LEAVE) & layer] = _records.EXIT
    return found


def _newest(run, most):
    """The run's last events; what was there before them follows from the end,
    and from what they free."""
    left_out = len(run.events) - most
    events = run.events[left_out:].copy()
    return dataclasses.replace(
        run, events=events, dropped=run.dropped + left_out,
        left_out=left_out,
        complete_from=int(events["time"][0]),
        devices=[dataclasses.replace(one, start=None, before={})
                 for one in run.devices])
