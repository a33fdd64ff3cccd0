# SPDX-License-Identifier: Apache-2.0
"""over_time(): what a device held over a run, at as many moments as a drawing
has room for; the report's timeline and a notebook's picture draw it.

Of each stretch of time that a reader can tell from the next, the moment at
which most was allocated and the last one: no peak is cut off. At each of them
the numbers are exact where the run is.
"""

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.exports import samples
from stratalloc.telemetry.exports.tiers import Tiers
from stratalloc.telemetry.replay import BEFORE


def over_time(walked, points):
    """{"times", "allocated", "reserved", "categories", "tiers"}: ns and bytes.

    All columns are as long as `times`, about `points` at most, the first of
    them the start of the run. Those of categories add up to `allocated`; tiers
    are those below the device that something was on.
    """
    moments = _moments(walked, max(2, points // 2))
    tiers = Tiers(walked.run, walked.index)
    below = [tiers.at(moment) for moment in moments]
    names = [tier for tier in model.TIERS[1:]
             if any(tier in one for one in below)]
    return {
        "times": [walked.time(moment) for moment in moments],
        "allocated": _values(walked.allocated, moments),
        "reserved": _values(walked.reserved, moments),
        "categories": {
            model.CATEGORIES[category]: _values(curve, moments)
            for category, curve in samples.by_category(walked).items()},
        "tiers": {tier: [one.get(tier, 0) for one in below]
                  for tier in names}}


def end(run):
    """ns at which the last of it was, 1 at least."""
    return max(int(run.duration), int(run.events["time"].max(initial=0)), 1)


def _moments(walked, stretches):
    """Moments in order, BEFORE the first."""
    events = walked.run.events
    if not len(events):
        return [BEFORE]
    changed = np.flatnonzero(
        (np.diff(walked.allocated.after, prepend=walked.allocated.base) != 0)
        | (np.diff(walked.reserved.after, prepend=walked.reserved.base) != 0))
    changed = np.union1d(changed, [len(events) - 1])
    stretch = (events["time"][changed] * (stretches / end(walked.run))
               ).astype("<i8")
    # Times of other devices may be between; they never fall by much.
    stretch = np.maximum.accumulate(stretch)
    edges = np.flatnonzero(np.append(True, np.diff(stretch) != 0))
    values = walked.allocated.after[changed]
    largest = np.repeat(np.maximum.reduceat(values, edges),
                        np.diff(np.append(edges, len(values))))
    is_largest = np.flatnonzero(values == largest)
    _, first = np.unique(np.searchsorted(edges, is_largest, "right"),
                         return_index=True)
    last = np.append(edges[1:], len(values)) - 1
    found = set(changed[np.append(is_largest[first], last)].tolist())
    found.update((BEFORE, walked.peak, walked.reserved_peak))
    return sorted(found)


def _values(curve, moments):
    return [curve.at(moment) for moment in moments]
