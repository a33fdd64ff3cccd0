# SPDX-License-Identifier: Apache-2.0
"""layers(): what each scope did, with the fields of LayerMemoryStats.

`peak_allocated` and `peak_reserved` are the device's while the scope was open
on any thread, or right after an allocation that was charged to it; `peak_owned`
is what its own blocks had at most. Counts are of blocks: what tiering moves is
neither allocated nor freed by it. Work is that of the events and how deep
scopes nest, however many there are.

Where it is told which scopes contain which, one is open while any inside of it
is: a container has no node of a backward, and its layers' are its backward.
"""

import numpy as np

from stratalloc.telemetry import lifetimes, model
from stratalloc.telemetry.exports import spans
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind


def layers(run, walked, groups=None, together=False, parents=None):
    """scope's name -> dict of its fields.

    Args:
      walked: device -> Replay, of those that count.
      groups: (names, for each scope the index of its name): scopes of one name
        are one; index 0 is of those that are left out. None: each is its own.
      together: the peaks are those of the devices' sums; else of the device
        that had most.
      parents: for each name the index of the one that contains it, or 0; None:
        nothing contains anything.
    """
    found = _Layers(
        run, groups, parents,
        None if len(walked) == len(run.devices) else list(walked))
    for thread in spans.threads(run):
        found.open(spans.spans(run, thread))
    for curves in ([list(walked.values())] if together and walked
                   else [[one] for one in walked.values()]):
        found.curves(sum(one.allocated.after for one in curves),
                     sum(one.reserved.after for one in curves),
                     [one.index for one in curves])
    found.peaks_inside()
    for one in walked.values():
        found.owned_on(one)
    return found.named()


class _Layers:
    def __init__(self, run, groups, parents, devices):
        self.run = run
        self.names, table = groups or (
            run.scopes, np.arange(len(run.scopes)))
        self.table = np.asarray(table, "<i8")
        events, count = run.events, len(self.names)
        self.parents = [0] * count if parents is None else parents
        ours = (events["flags"] & (model.EVICTED | model.RESTORED)) == 0
        here = (np.True_ if devices is None
                else np.isin(events["device"], devices))
        self.scopes = scopes = self.table[events["scope"]] if len(
            events) else np.zeros(0, "<i8")
        self.allocs = (events["kind"] == Kind.ALLOC) & ours & here
        frees = lifetimes.program_frees(run)
        if devices is not None:
            frees = frees[here[frees]]
        self.counts = [np.bincount(scopes[which], minlength=count)
                       for which in (self.allocs, frees)]
        kinds = events["kind"]
        self.duration = np.zeros(count, "<i8")
        self.peaks = np.zeros((2, count), "<i8")  # allocated, reserved
        self.owned = np.zeros(count, "<i8")
        self.ratios, self.samples = np.zeros(count), np.zeros(count, "<i8")
        self.intervals = []  # (scope, first event, behind the last)
        self.seen = set(np.unique(scopes[
            self.allocs | (kinds == Kind.SCOPE_ENTER)]).tolist()) - {0}

    def open(self, found):
        """Notes the outermost spans of each scope of one thread, and of what
        contains it."""
        last = len(self.run.events)
        times = self.run.events["time"]
        end = max(self.run.duration, int(times.max(initial=0)))
        inside = {}
        for event, opens, scope in found:
            scope = int(self.table[scope])
            while scope:
                depth, begun = inside.get(scope, (0, 0))
                if opens:
                    inside[scope] = depth + 1, begun if depth else event
                else:
                    inside[scope] = depth - 1, begun
                    if depth == 1:
                        self.intervals.append(
                            (scope, begun, min(event + 1, last)))
                        self.duration[scope] += (
                            int(times[event]) if event < last
                            else end) - int(times[begun])
                scope = self.parents[scope]

    def curves(self, allocated, reserved, devices):
        """Adds what was allocated and reserved on devices, after each event."""
        if not len(allocated):
            return
        ratio = np.where(reserved > 0, (reserved - allocated)
                         / np.maximum(reserved, 1), 0.0)
        sums = np.concatenate([[0.0], np.cumsum(ratio)])
        counts = np.concatenate([[0], np.cumsum(reserved > 0)])
        if self.intervals:
            scope, first, last = np.array(self.intervals, "<i8").T
            between = np.stack([first, last], axis=1).ravel()
            for i, curve in enumerate((allocated, reserved)):
                # The one behind the last event ends what lasts to the end.
                most = np.maximum.reduceat(np.append(curve, 0), between)[::2]
                np.maximum.at(self.peaks[i], scope, most)
            np.add.at(self.ratios, scope, sums[last] - sums[first])
            np.add.at(self.samples, scope, counts[last] - counts[first])
        at = np.flatnonzero(self.allocs
                            & np.isin(self.run.events["device"], devices))
        for i, curve in enumerate((allocated, reserved)):
            np.maximum.at(self.peaks[i], self.scopes[at], curve[at])

    def peaks_inside(self):
        """What was charged right after a layer's span is its containers', too.
        """
        for scope in self.seen:
            above = self.parents[scope]
            while above:
                self.peaks[:, above] = np.maximum(
                    self.peaks[:, above], self.peaks[:, scope])
                above = self.parents[above]

    def owned_on(self, one):
        """Sums of each scope's own blocks, in the order of what happened."""
        rows = one.rows
        last = len(self.run.events)
        whose = self.table[rows["scope"]] if len(rows) else rows["scope"]
        scope = np.concatenate([whose, whose])
        when = np.concatenate([rows["begin"], np.minimum(rows["asked"], last)])
        size = np.concatenate([rows["size"], -rows["size"]])
        order = np.lexsort((when, scope))
        scope, size = scope[order], np.cumsum(size[order])
        # All of a scope's blocks end, at the latest at `last`: each scope's
        # sums begin at 0.
        if len(scope):
            begins = np.flatnonzero(np.append(True, scope[1:] != scope[:-1]))
            most = np.maximum.reduceat(size, begins)
            self.owned[scope[begins]] += np.maximum(most, 0)

    def named(self):
        return {text(self.names[scope]): {
            "layer_name": text(self.names[scope]),
            "peak_allocated": int(self.peaks[0, scope]),
            "peak_reserved": int(self.peaks[1, scope]),
            "peak_owned": int(self.owned[scope]),
            "total_allocations": int(self.counts[0][scope]),
            "total_deallocations": int(self.counts[1][scope]),
            "avg_fragmentation": float(self.ratios[scope]
                                       / max(1, self.samples[scope])),
            "duration_ms": int(self.duration[scope]) / 1e6}
            for scope in sorted(self.seen)}
