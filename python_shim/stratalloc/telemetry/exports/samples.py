# SPDX-License-Identifier: Apache-2.0
"""samples(): a curve as few points as a viewer can take, with its peaks.

Of a curve that changes more often than that, each stretch is told by its
largest and its last value: the peak and the end are always right.
"""

import numpy as np

CURVES = ("allocated", "reserved", "active", "requested")


def samples(curve, most):
    """(moments, values) where the curve changed, at most `most` of them."""
    after = curve.after
    if not len(after):
        return np.zeros(0, "<i8"), after
    changed = np.flatnonzero(np.diff(after, prepend=curve.base) != 0)
    if len(changed) > most:
        values = after[changed]
        edges = np.linspace(0, len(changed), most // 2 + 1).astype("<i8")[:-1]
        largest = np.maximum.reduceat(values, edges)
        # The first place of the largest in each stretch.
        stretch = np.searchsorted(edges, np.arange(len(values)), "right") - 1
        is_largest = np.flatnonzero(values == largest[stretch])
        _, first = np.unique(stretch[is_largest], return_index=True)
        last = np.append(edges[1:], len(values)) - 1
        changed = changed[np.unique(np.append(is_largest[first], last))]
    return changed, after[changed]


def by_category(replay):
    """category -> Curve of the device's allocated bytes."""
    from stratalloc.telemetry.replay import Curve

    rows, last = replay.rows, len(replay.run.events)
    size, changes = rows["size"], replay.relabels
    changes = changes[changes["event"] < rows["asked"][changes["row"]]]
    changes = changes[np.argsort(changes["row"], kind="stable")]
    row, at, new = (changes[name] for name in ("row", "event", "category"))
    # What it was before: as the change before it says, or its beginning.
    was = np.where(np.append(False, row[1:] == row[:-1])[:len(row)],
                   np.roll(new, 1), rows["category"][row])
    ends_as = rows["category"].copy()
    ends_as[row] = new
    where = np.concatenate([rows["begin"], at, at, rows["asked"]])
    category = np.concatenate([rows["category"], was, new, ends_as])
    amount = np.concatenate([size, -size[row], size[row], -size])
    found = {}
    for one in np.unique(category).tolist():
        ours = (category == one) & (where < last)
        before = ours & (where < 0)
        changes, base = np.zeros(last, "<i8"), int(amount[before].sum())
        inside = ours & ~before
        np.add.at(changes, where[inside], amount[inside])
        found[one] = Curve(base, base + np.cumsum(changes))
    return found
