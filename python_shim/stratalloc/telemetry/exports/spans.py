# SPDX-License-Identifier: Apache-2.0
"""Spans: scopes of threads as pairs that nest, whatever was recorded.

A scope that is left and was not entered began before the recording; one that is
never left ends with it; what is left in another order than entered ends what is
inside of it.
"""

import collections

import numpy as np

from stratalloc.telemetry.model import Kind


def spans(run, thread, deepest=None):
    """[(event, opens, scope)] of a thread, in order: opens and ends match like
    brackets. `event` is an index, len(events) for what never ended.

    Args:
      deepest: levels that are told; None: all.
    """
    events = run.events
    at = np.flatnonzero((events["thread"] == thread)
                        & ((events["kind"] == Kind.SCOPE_ENTER)
                           | (events["kind"] == Kind.SCOPE_LEAVE)))
    found, inside = [], []
    open_of = collections.Counter()  # scope -> how often it is inside

    def put(event, opens, scope, level):
        if deepest is None or level < deepest:
            found.append((event, opens, scope))

    for event, kind, scope in zip(at.tolist(), events["kind"][at].tolist(),
                                  events["scope"][at].tolist()):
        if kind == Kind.SCOPE_ENTER:
            put(event, True, scope, len(inside))
            inside.append(scope)
            open_of[scope] += 1
        elif open_of[scope]:
            while True:
                last = inside.pop()
                open_of[last] -= 1
                put(event, False, last, len(inside))
                if last == scope:
                    break
    while inside:
        last = inside.pop()
        put(len(events), False, last, len(inside))
    return found


def bounded(run, thread, most):
    """spans(), of as many levels as `most` has room for."""
    found = spans(run, thread)
    if len(found) <= most:
        return found
    counts, level = {}, 0
    for _, opens, _ in found:
        level += 1 if opens else -1
        depth = level if opens else level + 1
        counts[depth] = counts.get(depth, 0) + 1
    deepest, total = 0, 0
    while total + counts.get(deepest + 1, most) <= most:
        deepest += 1
        total += counts[deepest]
    return spans(run, thread, deepest)


def threads(run):
    """Threads that entered a scope."""
    entered = run.events["thread"][run.events["kind"] == Kind.SCOPE_ENTER]
    return np.unique(entered).tolist()
