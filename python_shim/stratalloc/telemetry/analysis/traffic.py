# SPDX-License-Identifier: Apache-2.0
"""Traffic: what moved between the tiers of one device, and who waited for it.

Moves of a batch, and threads, overlap: time is that in which at least one of
them was under way, so that it is a share of the run's. A handle that leaves and
is the same below already needs no copy: what left is no measure of a bus, and
what came back is.
"""

import dataclasses

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind

_DISK = model.TIERS.index("disk")


def covered(begins, ends):
    """How much of a line intervals cover that may overlap; an int."""
    if not len(begins):
        return 0
    order = np.argsort(begins, kind="stable")
    begins = np.asarray(begins, "<i8")[order]
    ends = np.maximum.accumulate(np.asarray(ends, "<i8")[order])
    # Each adds what is behind all that began before it.
    before = np.maximum(np.concatenate([begins[:1], ends[:-1]]), begins)
    return int(np.maximum(ends - before, 0).sum())


def intervals(events):
    """(begins, ends) of events whose `aux` is how long they took, at the end of
    which they are told."""
    ends = events["time"]
    took = np.minimum(events["aux"], ends.astype("<u8")).astype("<i8")
    return ends - took, ends


def under_way(events):
    """Nanoseconds in which at least one of some events was under way."""
    return covered(*intervals(events))


def rates(run, index=None):
    """(out, back): bytes per second of a device's moves while one of that
    direction was under way; 0: none of known duration.

    Args:
      index: None: of all devices, each of which has a bus of its own.
    """
    events = run.events
    moves = events[(events["kind"] == Kind.MOVE) & (events["aux"] > 0)]
    source, to = model.ends(moves["category"])
    found = []
    for ours in (source == 0, to == 0):
        some = moves[ours if index is None
                     else ours & (moves["device"] == index)]
        took = sum(under_way(some[some["device"] == one])
                   for one in np.unique(some["device"]).tolist())
        found.append(int(some["bytes"].sum()) / took * 1e9 if took else 0.)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes and ns.

    `moved`: (source, target), indices of TIERS -> bytes. `took`: the same ->
    ns in which some such move was under way. `bus`, `disk`: ns in which any
    was between device and host, or from or to disk. `stalls`: how often a
    thread waited; `stalled`: ns in which one did. `late`, `waited`: of streams,
    for restores that were asked for ahead.
    """

    moved: dict
    took: dict
    bus: int
    disk: int
    stalls: int
    stalled: int
    late: int
    waited: int

    @property
    def left(self):
        """Bytes that left the device."""
        return sum(size for (source, _), size in self.moved.items()
                   if source == 0)

    @property
    def returned(self):
        """Bytes that came to the device."""
        return sum(size for (_, to), size in self.moved.items() if to == 0)

    def rate(self, source, to):
        """Bytes per second while such moves were under way; 0: not known."""
        took = self.took.get((source, to), 0)
        return self.moved[source, to] / took * 1e9 if took else 0.


def traffic(run, index):
    """Traffic of a device of a run."""
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    moves = events[kinds == Kind.MOVE]
    source, to = model.ends(moves["category"])
    moved, took = {}, {}
    for category in np.unique(moves["category"]).tolist():
        some = moves[moves["category"] == category]
        ends = tuple(map(int, model.ends(category)))
        moved[ends] = int(some["bytes"].sum())
        took[ends] = covered(*intervals(some))
    disk = (source == _DISK) | (to == _DISK)
    stalls, late = (events[kinds == kind] for kind in (Kind.STALL, Kind.LATE))
    return Traffic(moved, took, covered(*intervals(moves[~disk])),
                   covered(*intervals(moves[disk])),
                   len(stalls), covered(*intervals(stalls)),
                   len(late), covered(*intervals(late)))


