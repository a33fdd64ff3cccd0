# SPDX-License-Identifier: Apache-2.0
"""Who held memory in a run, and what changed: tree(), peak(), diff(), leaks().

Answers are those of stratalloc.holders(), diff() and leaks() in a program.
"""

import dataclasses

import numpy as np

from stratalloc._native import older_spellings
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Rows
from stratalloc._reports import diff as _diff
from stratalloc._reports import holders as _holders
from stratalloc._reports import leaks as _leaks
from stratalloc.sizes import format_size
from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.analysis import steps
from stratalloc.telemetry.analysis.lines import line

BY = ("owner", "category", "site")


def tree(run, device=None, at="peak", by="owner"):
    """Holders of a device.

    Args:
      device: None: the one that held most.
      at: "peak", "start", "end", or the index of an event.
      by: "owner", "category" or "site"; "module", of earlier versions, is
        "owner".

    Raises:
      ValueError: at or by cannot be.
    """
    by = older_spellings.by(by)
    walked = _walked(run, device)
    moment = _moment(walked, at)
    held = _named(walked, walked.holders(moment), by)
    rows = [_holders.Holder(name, category, size, count, "device")
            for (name, category), (size, count) in held.items()]
    return _holders.Holders(walked.allocated.at(moment), str(at),
                            walked.index, rows, by)


def peak(run, device=None, by="owner"):
    """tree() at the peak."""
    return tree(run, device, "peak", by)


def diff(a, b, device=None, at="peak", by="owner"):
    """What `b` holds more than `a`, two runs, or two moments of one:
    diff((run, 10), (run, 900)). Rows add up to the difference."""
    by, sides = older_spellings.by(by), []
    for one in (a, b):
        run, moment = one if isinstance(one, tuple) else (one, at)
        walked = _walked(run, device)
        sides.append((walked, _named(
            walked, walked.holders(_moment(walked, moment)), by)))
    (walked, before), (_, after) = sides
    rows = []
    for key in {**before, **after}:
        was, now = before.get(key, (0, 0)), after.get(key, (0, 0))
        if was != now:
            rows.append(_diff.Change(*key, now[0] - was[0], now[1] - was[1]))
    return _diff.Growth("a to b", walked.index, rows, by)


class Leaks(Rows):
    """Rows as stratalloc.leaks() has them: who gained with every step."""

    _row = _leaks.Leak

    def __init__(self, rows, steps, device, what, how):
        self.rows, self.steps, self.device = rows, steps, device
        self.at = f"{steps} steps, {what}" if steps else what
        self._how = how

    def __bool__(self):
        return bool(self.rows)

    @property
    def enough(self):
        """Whether there were steps enough to tell what grows."""
        return self.steps >= _leaks.LEAST

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        said = f"device {self.device}, {self.at}: "
        if not self.rows:
            return Page([said + ("nothing grows" if self.enough else
                                 f"{_leaks.LEAST} steps are needed to see what "
                                 f"grows; {self._how}")], depth, all, **how)
        return Page([said + f"{len(self.rows)} grow", *(
            f"{row.name} ({row.category}): {format_size(row.per_step)} a step, "
            f"{format_size(row.bytes)} in the steps that were compared"
            for row in self.rows)],
            depth, all, **how)


def leaks(run, device=None, by="owner"):
    """Owners that hold more after each step; steps.of() says what a step is."""
    by = older_spellings.by(by)
    walked = _walked(run, device)
    found = steps.of(run)
    moments, count = found.moments, len(found.moments)
    if count > _MOST_STEPS:
        evenly = np.linspace(0, count - 1, _MOST_STEPS).astype(int)
        moments = [moments[i] for i in evenly]
    held = [_held(walked, moment, by)
            for moment in progress.over(moments, "walking steps")]
    rows = _leaks.growing(held)
    if count > _MOST_STEPS:  # from one that is walked to the next are several
        rows = [dataclasses.replace(one, per_step=(
            one.per_step * (_MOST_STEPS - 1) // (count - 1))) for one in rows]
    return Leaks(rows, count, walked.index, found.what, steps.how(run))


_MOST_STEPS = 200  # that are walked; of more, so many, evenly spread


def _walked(run, device):
    if device is not None:
        if device not in replay.devices(run):
            raise ValueError(f"stratalloc: the run has no device {device!r}; "
                             f"it has {replay.devices(run)}")
        return replay.Replay(run, device)
    return replay.busiest(run)


def _moment(walked, at):
    last = len(walked.run.events) - 1
    if at == "peak":
        return walked.peak
    if at in ("start", "end"):
        return replay.BEFORE if at == "start" else last
    if isinstance(at, int) and replay.BEFORE <= at <= last:
        return at
    raise ValueError(f"stratalloc: at={at!r} is no moment of the run; use "
                     f"peak, start, end or an event from 0 to {last}")


def _held(walked, moment, by):
    """_named() of the holders at a moment. Sites apart, which are many: by
    columns."""
    if by not in ("owner", "category"):
        return _named(walked, walked.holders(moment), by)
    which = walked.live(moment)
    scope, category = walked.owners(which, moment)
    few = len(model.CATEGORIES)
    keys, place = np.unique(scope.astype("<i8") * few + category,
                            return_inverse=True)
    sizes, counts = np.zeros((2, len(keys)), "<i8")
    np.add.at(sizes, place, walked.rows["size"][which])
    np.add.at(counts, place, 1)
    found = {}
    for key, *sums in zip(keys.tolist(), sizes.tolist(), counts.tolist()):
        kind = model.CATEGORIES[key % few]
        said = kind if by == "category" else walked.run.scopes[key // few]
        size, count = found.get((said, kind), (0, 0))
        found[said, kind] = size + sums[0], count + sums[1]
    return found


def _named(walked, holders, by):
    """(name, category) -> (bytes, blocks)."""
    if by not in BY:
        raise ValueError(f"stratalloc: by={by!r} does not exist; use one of "
                         f"{', '.join(BY)}")
    run, found = walked.run, {}
    for one in holders:
        category = model.CATEGORIES[one.category]
        if by == "site":
            name = line(run, one.site)
        else:
            name = category if by == "category" else run.scopes[one.scope]
        size, count = found.get((name, category), (0, 0))
        found[name, category] = size + one.bytes, count + one.count
    return found
