# SPDX-License-Identifier: Apache-2.0
"""timeline(): what was allocated, by category, and what was below, over time.

Of each stretch of time that the page can tell from the next, the moment at
which most was allocated and the last one: no peak is cut off.
"""

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.exports import samples
from stratalloc.telemetry.exports.tiers import Tiers
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import BEFORE
from stratalloc.telemetry.report.bounds import name


def timeline(walked, bounds):
    """{"times", "allocated", "reserved", "categories", "tiers", "marks",
    "ooms"}: ns and bytes; columns are as long as `times`, and the categories'
    add up to `allocated`."""
    run = walked.run
    moments = _moments(walked, max(2, bounds.points // 2))
    tiers = Tiers(run, walked.index)
    below = [tiers.at(moment) for moment in moments]
    names = [tier for tier in model.TIERS[1:]
             if any(tier in one for one in below)]
    return {
        "end": _end(run),
        "times": [walked.time(moment) for moment in moments],
        "allocated": _values(walked.allocated, moments),
        "reserved": _values(walked.reserved, moments),
        "categories": {
            model.CATEGORIES[category]: _values(curve, moments)
            for category, curve in samples.by_category(walked).items()},
        "tiers": {tier: [one.get(tier, 0) for one in below]
                  for tier in names},
        **_instants(run, walked.index, bounds.marks)}


def _end(run):
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
    stretch = (events["time"][changed] * (stretches / _end(walked.run))
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


def _instants(run, index, most):
    events = run.events
    marks = events[events["kind"] == Kind.MARK]
    ooms = events[(events["kind"] == Kind.OOM) & (events["device"] == index)]
    return {
        "marks": [[time, name(run.scopes[scope])] for time, scope in zip(*(
            column[_spread(len(marks), most)].tolist()
            for column in (marks["time"], marks["scope"])))],
        "marks_in_all": len(marks),
        "ooms": [[time, size] for time, size in zip(*(
            column[_spread(len(ooms), most)].tolist()
            for column in (ooms["time"], ooms["bytes"])))],
        "ooms_in_all": len(ooms)}


def _spread(count, most):
    """Places of at most `most` of so many, evenly spread."""
    return (np.arange(count) if count <= most
            else np.linspace(0, count - 1, most).astype(int))
