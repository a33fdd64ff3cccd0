# SPDX-License-Identifier: Apache-2.0
"""layers_table(): what each layer held, allocated, moved and waited for."""

import numpy as np

from stratalloc._rendering.table import natural
from stratalloc.telemetry import model
from stratalloc.telemetry.exports.layers import layers
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report.bounds import name

COLUMNS = ("name", "at_peak", "most", "allocated", "count", "left", "returned",
           "stalls", "stalled_ns", "inside_ns")


def layers_table(walked, most):
    """{"columns": COLUMNS, "rows": [...], "rest": a row or None}: what holds
    most at the peak first.

    `most`: bytes of its own at most; `allocated`, `count`: in all; `left`,
    `returned`: bytes of its blocks that left the device and came back;
    `stalled_ns`: of all threads together; `inside_ns`: in which it was open.
    """
    run = walked.run
    told = layers(run, {walked.index: walked})
    sums = _Sums(len(run.scopes))
    for one in walked.holders():
        sums.add("at_peak", one.scope, one.bytes)
    for one in walked.churn():
        sums.add("allocated", one.scope, one.bytes)
        sums.add("count", one.scope, one.count)
    _of_events(run, walked.index, sums)
    rows = []
    for scope in np.flatnonzero(sums.seen()).tolist():
        one = told.get(text(run.scopes[scope]), {})
        sums.put("most", scope, one.get("peak_owned", 0))
        sums.put("inside_ns", scope, int(one.get("duration_ms", 0) * 1e6))
        rows.append([name(run.scopes[scope]), *sums.row(scope)])
    rows.sort(key=lambda row: (-row[1], -row[2], natural(row[0])))
    rest = rows[most:]
    return {"columns": COLUMNS, "rows": rows[:most], "rest": rest and [
        f"({len(rest)} more)", *(sum(column) for column in zip(*(
            row[1:] for row in rest)))] or None}


class _Sums:
    """A column of each, by scope."""

    def __init__(self, count):
        self._columns = {key: np.zeros(count, "<i8") for key in COLUMNS[1:]}

    def add(self, column, scope, value):
        self._columns[column][scope] += value

    def add_all(self, column, scopes, values):
        np.add.at(self._columns[column], scopes, values)

    def put(self, column, scope, value):
        self._columns[column][scope] = value

    def seen(self):
        return sum(one != 0 for one in self._columns.values())

    def row(self, scope):
        return [int(one[scope]) for one in self._columns.values()]


def _of_events(run, index, sums):
    """What left and came back, of ends and beginnings that say so: what of a
    block stayed, or was here before the rest, begins or ends with it."""
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    for kind, flag, column, sign in (
            (Kind.FREE_COMPLETED, model.EVICTED, "left", 1),
            (Kind.ALLOC, model.EVICTED, "left", -1),
            (Kind.ALLOC, model.RESTORED, "returned", 1),
            (Kind.FREE_COMPLETED, model.RESTORED, "returned", -1)):
        some = events[(kinds == kind) & (events["flags"] & flag != 0)]
        sums.add_all(column, some["scope"], sign * some["aux"].astype("<i8"))
    stalls = events[kinds == Kind.STALL]
    sums.add_all("stalls", stalls["scope"], 1)
    sums.add_all("stalled_ns", stalls["scope"], stalls["aux"].astype("<i8"))
