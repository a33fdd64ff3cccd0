# SPDX-License-Identifier: Apache-2.0
"""What the pytest plug-in measures of each test, and holds against it."""

import gc

import torch

from stratalloc import _budgets
from stratalloc import _core
from stratalloc import _growth
from stratalloc import _holders
from stratalloc.settings import format_size

_SHOWN = 5  # owners in a failure
# Libraries keep these to the end of the process, whoever called them first.
_KEPT = "workspace"


class State:
    """Of one pytest session. `leaks`: bytes a test may leave, or None."""

    def __init__(self, leaks, updates):
        self._leaks = leaks
        self._budgets = _budgets.Budgets(updates)
        self._before = None

    @property
    def written(self):
        return self._budgets.written

    def begin(self):
        """A test begins, before its fixtures."""
        if _core.initialized():
            for device in _devices():
                torch.cuda.reset_peak_memory_stats(device)

    def begin_call(self):
        """Its fixtures are there."""
        if self._leaks is not None:
            gc.collect()
            self._before = [_growth.mark(device=device)
                            for device in _devices()]

    def end_call(self, path, name, limit):
        """It passed. Returns what is wrong all the same, as text."""
        if not _core.initialized():
            return []
        # Of several devices the one that held the most.
        peak = max((_holders.peak(device) for device in _devices()),
                   key=lambda each: each.total)
        wrong = []
        if limit is not None and peak.total > limit:
            wrong.append(
                f"the device held {format_size(peak.total)} at once, limit "
                f"{format_size(limit)}: {_largest(peak.rows)}")
        wrong += self._left()
        wrong += self._budgets.check(path, name, peak)
        return wrong

    def _left(self):
        if self._leaks is None:
            return []
        gc.collect()
        # Before CUDA was initialised nobody had anything.
        before = {mark.device: mark for mark in self._before if mark.held}
        nothing = _growth.Mark("nothing", 0, 0, {})
        left = [row for device in _devices() for row in _growth.diff(
                    before.get(device, nothing),
                    _growth.mark(device=device)).rows if row.category != _KEPT]
        total = sum(row.bytes for row in left)
        if total <= self._leaks:
            return []
        return [f"the test leaves {format_size(total)} behind: "
                + _largest([row for row in left if row.bytes > 0])]

    def write_budgets(self):
        self._budgets.write()


def _devices():
    return range(torch.cuda.device_count())


def _largest(rows):
    """"Net.0 (activation) 8 MiB, ...": the largest."""
    rows = sorted(rows, key=lambda row: -row.bytes)
    text = ", ".join(f"{row.name} ({row.category}) {format_size(row.bytes)}"
                     for row in rows[:_SHOWN])
    return text + (f" and {len(rows) - _SHOWN} more"
                   if len(rows) > _SHOWN else "")
