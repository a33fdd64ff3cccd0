# SPDX-License-Identifier: Apache-2.0
"""moves(): what was under way between the tiers, and who waited, over time.

A lane has bars [begin, end, bytes, how many]: what overlaps, or is nearer than
the page can show, is one bar. Bars add up to all that was recorded.
"""

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.analysis.traffic import intervals, traffic
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report.bounds import name

_LATE = 50  # that are told one by one, the longest


def moves(run, index, bounds):
    """{"lanes": [{"name", "kind", "bars", "bytes", "count", "took_ns",
    "rate"}], "late": [[ns, layer, bytes, waited ns]], ...}."""
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    found = traffic(run, index)
    lanes = []
    moved = events[kinds == Kind.MOVE]
    for (source, to), took in sorted(found.took.items()):
        some = moved[moved["category"] == model.move(source, to)]
        lanes.append(_lane(
            f"{model.TIERS[source]} to {model.TIERS[to]}",
            "out" if to > source else "in", some, took, bounds.bars))
    for kind, said, took in (
            (Kind.STALL, "threads wait", found.stalled),
            (Kind.LATE, "streams wait", found.waited)):
        some = events[kinds == kind]
        if len(some):
            lanes.append(_lane(said, "stall" if kind == Kind.STALL else "late",
                               some, took, bounds.bars))
    late = events[kinds == Kind.LATE]
    order = np.argsort(late["aux"], kind="stable")[::-1][
        :min(_LATE, bounds.rows)]
    return {"lanes": lanes, "left": found.left, "returned": found.returned,
            "stalled_ns": found.stalled, "late_in_all": len(late),
            "late": [[time, name(run.scopes[scope]), size, took]
                     for time, scope, size, took in zip(*(
                         late[order][column].tolist() for column in (
                             "time", "scope", "bytes", "aux")))]}


def _lane(said, kind, some, took, most):
    size = int(some["bytes"].sum())
    return {"name": said, "kind": kind, "bars": _bars(some, most),
            "bytes": size, "count": len(some), "took_ns": took,
            "rate": int(size / took * 1e9) if took else 0}


def _bars(some, most):
    """At most `most` bars."""
    begins, ends = intervals(some)
    order = np.argsort(begins, kind="stable")
    begins, ends, sizes = begins[order], ends[order], some["bytes"][order]
    if not len(begins):
        return []
    behind = np.maximum.accumulate(ends)
    gaps = begins[1:] - behind[:-1]
    # The widest gaps part bars.
    apart = np.flatnonzero(gaps > 0)
    if len(apart) >= most:
        apart = np.sort(apart[np.argsort(-gaps[apart], kind="stable")[
            :most - 1]])
    first = np.append(0, apart + 1)
    last = np.append(apart, len(begins) - 1)
    totals = np.add.reduceat(sizes.astype("<i8"), first)
    return [list(one) for one in zip(
        begins[first].tolist(), behind[last].tolist(), totals.tolist(),
        (last - first + 1).tolist())]
