# SPDX-License-Identifier: Apache-2.0
"""layers(): what each scope did, with the fields of LayerMemoryStats.

`peak_allocated` and `peak_reserved` are the device's while the scope was open on
any thread, or right after an allocation that was charged to it; `peak_owned` is
what its own blocks had at most. Work is that of the events and how deep scopes
nest, however many there are.
"""

import numpy as np

from stratalloc.telemetry.exports import spans
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind


def layers(run, walked):
    """scope's name -> dict of its fields. walked: device -> Replay."""
    found = _Layers(run)
    for thread in spans.threads(run):
        found.open(spans.spans(run, thread))
    for one in walked.values():
        found.device(one)
    return found.named()


class _Layers:
    def __init__(self, run):
        self.run = run
        events, count = run.events, len(run.scopes)
        kinds, scopes = events["kind"], events["scope"]
        self.allocs = kinds == Kind.ALLOC
        self.counts = [np.bincount(scopes[kinds == kind], minlength=count)
                       for kind in (Kind.ALLOC, Kind.FREE_REQUESTED)]
        self.duration = np.zeros(count, "<i8")
        self.peaks = np.zeros((2, count), "<i8")  # allocated, reserved
        self.owned = np.zeros(count, "<i8")
        self.ratios, self.samples = np.zeros(count), np.zeros(count, "<i8")
        self.intervals = []  # (scope, first event, behind the last)
        self.seen = set(np.unique(scopes[
            self.allocs | (kinds == Kind.SCOPE_ENTER)]).tolist()) - {0}

    def open(self, found):
        """Notes the outermost spans of each scope of one thread."""
        last = len(self.run.events)
        times = self.run.events["time"]
        end = max(self.run.duration, int(times.max(initial=0)))
        inside = {}
        for event, opens, scope in found:
            depth, begun = inside.get(scope, (0, 0))
            if opens:
                inside[scope] = depth + 1, begun if depth else event
            else:
                inside[scope] = depth - 1, begun
                if depth == 1:
                    self.intervals.append((scope, begun, min(event + 1, last)))
                    self.duration[scope] += (int(times[event]) if event < last
                                             else end) - int(times[begun])

    def device(self, one):
        """Adds what happened on a device."""
        allocated, reserved = one.allocated.after, one.reserved.after
        ratio = np.where(reserved > 0, (reserved - allocated)
                         / np.maximum(reserved, 1), 0.0)
        sums = np.concatenate([[0.0], np.cumsum(ratio)])
        counts = np.concatenate([[0], np.cumsum(reserved > 0)])
        for scope, first, last in self.intervals:
            for i, curve in enumerate((allocated, reserved)):
                self.peaks[i, scope] = max(self.peaks[i, scope],
                                           curve[first:last].max())
            self.ratios[scope] += sums[last] - sums[first]
            self.samples[scope] += counts[last] - counts[first]
        at = np.flatnonzero(self.allocs
                            & (self.run.events["device"] == one.index))
        scopes = self.run.events["scope"][at]
        for i, curve in enumerate((allocated, reserved)):
            np.maximum.at(self.peaks[i], scopes, curve[at])
        self._owned(one)

    def _owned(self, one):
        """Sums of each scope's own blocks, in the order of what happened."""
        rows = one.rows
        last = len(self.run.events)
        scope = np.concatenate([rows["scope"], rows["scope"]])
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
        return {text(self.run.scopes[scope]): {
            "layer_name": text(self.run.scopes[scope]),
            "peak_allocated": int(self.peaks[0, scope]),
            "peak_reserved": int(self.peaks[1, scope]),
            "peak_owned": int(self.owned[scope]),
            "total_allocations": int(self.counts[0][scope]),
            "total_deallocations": int(self.counts[1][scope]),
            "avg_fragmentation": float(self.ratios[scope]
                                       / max(1, self.samples[scope])),
            "duration_ms": int(self.duration[scope]) / 1e6}
            for scope in sorted(self.seen)}
