# SPDX-License-Identifier: Apache-2.0
"""Ranges: scopes of all threads from their enter to their leave, as columns.

An enter is matched with the next leave at its depth of its thread, whatever
that leave is called. Leaves of scopes that were entered before the recording
are left out; a scope that is not left ends behind the last event.
"""

import numpy as np

from stratalloc.telemetry.model import Kind

RANGE = np.dtype([
    ("begin", "<i8"), ("end", "<i8"),  # events
    ("scope", "<u4"), ("category", "u1"), ("flags", "u1"),
    ("left", "u1"),  # category of the leave; that of the enter without one
    ("outer", "?")])  # inside of no other scope of its thread


def ranges(run):
    """RANGE rows in the order of `begin`."""
    kinds = run.events["kind"]
    at = np.flatnonzero((kinds == Kind.SCOPE_ENTER)
                        | (kinds == Kind.SCOPE_LEAVE))
    threads = run.events["thread"][at]
    found = [_of_thread(run, at[threads == thread])
             for thread in np.unique(threads)]
    if not found:
        return np.zeros(0, RANGE)
    joined = np.concatenate(found)
    return joined[np.argsort(joined["begin"], kind="stable")]


def _of_thread(run, at):
    events = run.events
    enters = events["kind"][at] == Kind.SCOPE_ENTER
    depth = np.cumsum(np.where(enters, 1, -1))
    # A leave without an enter takes the depth below 0, and counts as 0.
    depth -= np.minimum(np.minimum.accumulate(depth), 0)
    level = np.where(enters, depth, depth + 1)
    order = np.argsort(level, kind="stable")
    first = order[enters[order]]
    # At a level enters and leaves take turns: the leave is the next one.
    follows = np.append(order, -1)[1 + np.flatnonzero(enters[order])]
    matched = (follows >= 0) & ~enters[follows] & (
        level[follows] == level[first])
    found = np.zeros(len(first), RANGE)
    found["begin"] = at[first]
    found["end"] = np.where(matched, at[follows], len(events))
    for name in ("scope", "category", "flags"):
        found[name] = events[name][at[first]]
    found["left"] = np.where(matched, events["category"][at[follows]],
                             found["category"])
    found["outer"] = level[first] == 1
    return found
