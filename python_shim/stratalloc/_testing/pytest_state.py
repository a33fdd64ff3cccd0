# SPDX-License-Identifier: Apache-2.0
"""What the pytest plug-in measures of each test, and holds against it.

What a test needed is what the device held at once between its begin and its
end, also where the test itself resets torch's peak: each reset is heard, and
what there was before it is noted. What was there before and is not of its
fixtures is left out (pytest_before.py). Workspaces that outlive a test are left
out: libraries make them for whoever comes first and keep them, so with them the
answer would hang on the order of the tests. The moment is that of the largest
sum, with them.
"""

import dataclasses
import gc
import sys
import threading

import torch

from stratalloc._hooks import resets as _resets
from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._rendering.table import natural
from stratalloc._reports import diff as _diff
from stratalloc._reports import holders as _holders
from stratalloc._testing import budgets as _budgets
from stratalloc._testing import pytest_before as _pytest_before
from stratalloc.sizes import format_size

_SHOWN = 5  # owners in a failure
# Libraries keep these to the end of the process, whoever called them first.
_KEPT = "workspace"


class State:
    """Of one pytest session. `leaks`: bytes a test may leave, or None."""

    def __init__(self, leaks, updates):
        self._leaks = leaks
        self._budgets = _budgets.Budgets(updates)
        self._before, self._prepared = {}, {}
        self._passed = self._measured = False
        self._workspaces = {}  # device -> {owner: bytes}, at the begin
        self._needed = {}  # device -> Holders, the most until the last reset
        self._lock = threading.Lock()  # of _needed: threads reset, too
        self.fixtures = _pytest_before.Fixtures()
        self._there = None  # _pytest_before.Before
        self._hooks = _resets.before_each(torch, self._note)

    @property
    def written(self):
        return self._budgets.written

    def is_measured(self, path, name):
        """Has this test a budget, or is one written for it?"""
        return self._budgets.knows(path, name)

    def begin(self, fixtures, measured):
        """A test begins, before its fixtures.

        Args:
          fixtures: definitions of those that it uses.
          measured: is there a limit or a budget?
        """
        _forget_last_failure()
        gc.collect()
        self._passed = False
        self._before = self._held()
        self._workspaces = {}
        if _core.initialized():
            for device in _devices():
                torch.cuda.reset_peak_memory_stats(device)
                self._workspaces[device] = _workspaces(device)
        self._needed = {}  # what these resets noted was others'
        self._measured = measured
        blocks = _pytest_before.live()
        self.fixtures.keep(blocks)
        for key in self.fixtures.blocks(fixtures):
            blocks.pop(key)
        self._there = _pytest_before.Before(blocks if measured else {},
                                            measured)

    def begin_call(self):
        """Its fixtures are there."""
        self._prepared = self._held()

    def end_call(self, path, name, limit, fixtures):
        """It passed. Returns what is wrong all the same, as text."""
        self._passed = True
        if not _core.initialized():
            if self._measured and torch.cuda.is_initialized():
                return [_state.why_not_enabled()]
            return []
        self._note()
        self._there.end()
        peak = _largest_of(self._needed.values())
        wrong = self._wrong(path, name, limit, peak)
        if not self._there or not (wrong or self._budgets.updates):
            return wrong
        mine, unknown = self.fixtures.blocks(fixtures), ""
        try:
            peak = _largest_of(self._there.own(mine))
        except ValueError as error:
            unknown = str(error)
        else:
            wrong = self._wrong(path, name, limit, peak)
        said = self._there.text(mine, unknown) if wrong else ""
        return [*wrong, said] if said else wrong

    def _wrong(self, path, name, limit, peak):
        wrong = []
        if limit is not None and peak.total > limit:
            wrong.append(
                f"the device held {format_size(peak.total)} at once, limit "
                f"{format_size(limit)}: {_largest(peak.rows)}")
        wrong += self._budgets.check(path, name, peak)
        return wrong

    def _note(self):
        for device in _devices():
            found = self._without_kept(_holders.peak(device))
            with self._lock:
                known = self._needed.get(device)
                if known is None or known.total < found.total:
                    self._needed[device] = found

    def _without_kept(self, peak):
        """A peak less the workspaces that were, or are, there anyway."""
        before = self._workspaces.get(peak.device, {})
        now = _workspaces(peak.device)
        rows = []
        for row in peak.rows:
            kept = (max(before.get(row.name, 0), now.get(row.name, 0))
                    if row.category == _KEPT else 0)
            if row.bytes > kept:
                rows.append(dataclasses.replace(row, bytes=row.bytes - kept))
        return _holders.Holders(sum(row.bytes for row in rows), peak.at,
                                peak.device, rows)

    def end(self):
        """Its own fixtures are gone. Returns what it leaves behind, as text.

        What a failed test holds its traceback holds.
        """
        if self._there is not None:
            self._there.close()
        if self._leaks is None or not self._passed:
            return ""
        gc.collect()
        left = []
        for key, size in self._held().items():
            before = self._before.get(key, 0)
            # Fixtures that outlive the test.
            fixtures = max(self._prepared.get(key, 0) - before, 0)
            if size > before + fixtures:
                left.append(_diff.Change(*key[1:], size - before - fixtures,
                                           0))
        total = sum(row.bytes for row in left)
        if total <= self._leaks:
            return ""
        return (f"the test leaves {format_size(total)} behind: "
                + _largest(left))

    def _held(self):
        """(device, owner, category) -> bytes."""
        if self._leaks is None or not _core.initialized():
            return {}
        return {(device, *key): size for device in _devices()
                for key, (size, _) in _diff.mark(device=device).held.items()
                if key[1] != _KEPT}

    def live(self):
        return _pytest_before.live()

    def finish(self):
        """The session is over."""
        self._hooks.put_back()
        self._budgets.write()


def _forget_last_failure():
    """It is kept for a debugger until the next test's call, and its frames keep
    tensors. Clearing them is not enough: whoever looked at f_locals made copies.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


def _largest_of(peaks):
    """Of several devices the one that held the most."""
    return max(peaks, key=lambda each: each.total)


def _devices():
    return range(torch.cuda.device_count())


def _workspaces(device):
    """Owner -> bytes of workspaces that are there."""
    return {owner: size for (owner, category), (size, _)
            in _diff.mark(device=device).held.items() if category == _KEPT}


def _largest(rows):
    """"Net.0 (activation) 8 MiB, ...": the largest."""
    rows = sorted(rows, key=lambda row: (-row.bytes, natural(row.name)))
    text = ", ".join(f"{row.name} ({row.category}) {format_size(row.bytes)}"
                     for row in rows[:_SHOWN])
    return text + (f" and {len(rows) - _SHOWN} more"
                   if len(rows) > _SHOWN else "")
