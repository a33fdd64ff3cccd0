# SPDX-License-Identifier: Apache-2.0
"""Work of exporters is in proportion to what a file has, told by counting calls
and comparisons: a file of kilobytes keeps nobody waiting."""

import sys

import numpy as np
import pytest

import made_runs
from stratalloc.telemetry import model
from stratalloc.telemetry.exports import perfetto, spans
from stratalloc.telemetry.model import Kind

MIB = 1 << 20


def calls(function):
    """How many calls of Python's and of C's functions it makes."""
    count = 0

    def profile(frame, what, more):
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def _together(count):
    """As many moves as that, all at the same time."""
    maker = made_runs.Maker()
    for i in range(count):
        maker.put(Kind.MOVE, i * MIB, MIB, 1 << 40, category=model.move(0, 1))
    return maker.finish()


def _threads(count):
    """Threads that enter a scope each, of as many scopes as all together."""
    maker = made_runs.Maker()
    maker.run.scopes += [f"scope {i}" for i in range(count)]
    maker.run.threads = [f"thread {i}" for i in range(count)]
    for i in range(count):
        maker.put(Kind.SCOPE_ENTER, scope=5 + i, thread=i)
    return maker.finish()


@pytest.mark.parametrize("made", [_together, _threads])
def test_twice_as_much_is_twice_the_work_for_perfetto(tmp_path, made):
    perfetto.write(made(1), tmp_path / "made")  # whatever is made once
    few, many = (calls(lambda: perfetto.write(run, tmp_path / "made"))
                 for run in (made(200), made(400)))
    assert many < 2.2 * few


class _Scope(int):
    """A number that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other):
        _Scope.compared += 1
        return int(self) == int(other)


class _Events:
    def __init__(self, **columns):
        self._columns = columns

    def __getitem__(self, name):
        return self._columns[name]

    def __len__(self):
        return len(self._columns["kind"])


def test_a_scope_that_was_never_entered_is_not_looked_for():
    count = 500
    scopes = np.empty(2 * count, object)
    scopes[:] = [_Scope(1 + i) for i in range(2 * count)]
    run = model.Run(events=_Events(
        thread=np.zeros(2 * count, "u2"), scope=scopes, kind=np.repeat(
            [int(Kind.SCOPE_ENTER), int(Kind.SCOPE_LEAVE)], count)))
    _Scope.compared = 0
    found = spans.spans(run, 0)
    assert len(found) == 2 * count  # all are open until the end
    assert _Scope.compared < 10 * count


def test_lanes_have_slices_that_do_not_overlap():
    lanes = []
    chance, ends, most = np.random.default_rng(3), {}, 0
    for end in np.sort(chance.integers(0, 1000, 300)).tolist():
        begin = end - int(chance.integers(0, min(end, 60) + 1))
        lane = perfetto._lane(  # pylint: disable=protected-access
            lanes, begin, end)
        assert ends.get(lane, 0) <= begin
        if lane not in ends:  # all others are taken
            assert all(begin < one for one in ends.values())
        ends[lane], most = end, max(most, lane)
    assert 1 < most < 100
