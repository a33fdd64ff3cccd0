# SPDX-License-Identifier: Apache-2.0
"""Sums of a report are the replay's: curves, panels, maps, moves, layers."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import made_runs
from report_data import MIB, adds_up, device_of
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis import curves
from stratalloc.telemetry.exports.layers import layers
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report.bounds import Bounds
from stratalloc.telemetry.report.curves import timeline
from stratalloc.telemetry.report.moves import moves
from stratalloc.telemetry.report.residency import away, residency

_SOME = settings(max_examples=40, deadline=None)
_RUNS = given(st.integers(0, 1 << 30), st.integers(1, 250), st.booleans())


@_SOME
@_RUNS
def test_curves_are_the_models(seed, steps, tiering):
    run, maker = made_runs.make(seed, steps, tiering=tiering)
    told = device_of(run)["timeline"]
    columns = told["categories"].values()
    for i, allocated in enumerate(told["allocated"]):
        assert sum(column[i] for column in columns) == allocated
    for key, place in (("allocated", 0), ("reserved", 3)):
        column = [0, *(one[place] for one in maker.sums)]
        assert max(told[key]) == max(column)
        assert told[key][-1] == column[-1] and told[key][0] == 0
        assert set(told[key]) <= set(column)
    assert told["times"] == sorted(told["times"])


@settings(max_examples=10, deadline=None)
@_RUNS
def test_a_notebooks_picture_is_the_pages_timeline(seed, steps, tiering):
    run, _ = made_runs.make(seed, steps, tiering=tiering)
    areas = curves.Curves(run, 0).areas()
    told = timeline(replay.Replay(run, 0), Bounds(points=curves.POINTS))
    assert areas.times == told["times"]
    assert areas.parts == {category: sizes for category, sizes
                           in told["categories"].items() if any(sizes)}
    lines = {"reserved": told["reserved"], **{
        f"on {tier}": sizes for tier, sizes in told["tiers"].items()}}
    assert areas.lines == {key: sizes for key, sizes in lines.items()
                           if any(sizes)}


@_SOME
@_RUNS
def test_panels_add_up_to_the_peak(seed, steps, tiering):
    run, maker = made_runs.make(seed, steps, tiering=tiering)
    told = device_of(run)
    most = max((one[0] for one in maker.sums), default=0)
    peak = told["peak"]
    assert peak["allocated"] == told["flame"]["b"] == most
    adds_up(told["flame"])
    assert sum(row[2] for row in told["residency"]["peak"]) == most
    table = told["layers"]
    assert sum(row[1] for row in table["rows"]) == most
    churn = sum(one.bytes for one in replay.Replay(run, 0).churn())
    allocated = table["columns"].index("allocated")
    assert sum(row[allocated] for row in table["rows"]) == churn
    stranded = peak["parts"]["stranded"]
    assert told["addresses"]["pinners"]["stranded"] == stranded
    assert sum(block[3] for _, _, _, blocks in told["addresses"]["segments"]
               for block in blocks if block[2] == 2) == stranded


@_SOME
@_RUNS
def test_a_map_covers_its_segments_and_has_the_blocks(seed, steps, tiering):
    run, _ = made_runs.make(seed, steps, tiering=tiering)
    told = device_of(run)
    held = {0: 0, 1: 0}
    for _, size, _, blocks in told["addresses"]["segments"]:
        at = 0
        for block in blocks:
            assert block[0] == at
            at += block[1]
            if block[2] < 2:
                held[block[2]] += block[1]
        assert at == size
    parts = told["peak"]["parts"]
    assert held == {0: parts["allocated"], 1: parts["pending"]}


@_SOME
@_RUNS
def test_moves_and_blocks_are_all_there(seed, steps, tiering):
    run, _ = made_runs.make(seed, steps, tiering=tiering)
    told = device_of(run)
    events = run.events
    moved = events[events["kind"] == Kind.MOVE]
    lanes = [one for one in told["moves"]["lanes"] if " to " in one["name"]]
    assert sum(one["bytes"] for one in lanes) == moved["bytes"].sum()
    for one in lanes:
        assert sum(bar[2] for bar in one["bars"]) == one["bytes"]
        assert sum(bar[3] for bar in one["bars"]) == one["count"]
        ends = [at for bar in one["bars"] for at in bar[:2]]
        assert ends == sorted(ends)
        assert sum(bar[1] - bar[0] for bar in one["bars"]) == one["took_ns"]
    rows = replay.Replay(run, 0).rows
    for key in ("lifetimes", "sizes"):
        assert sum(bar[2] for bar in told[key]["bars"]) + told[key][
            "others"] == len(rows)
    for low, below, count, size in told["sizes"]["bars"]:
        inside = (rows["requested"] >= low) & (rows["requested"] < below)
        assert (count, size) == (inside.sum(), rows["size"][inside].sum())


def test_a_layers_own_numbers_are_the_exporters():
    run = made_runs.story()
    told = device_of(run)["layers"]
    wanted = layers(run, {0: replay.Replay(run, 0)})
    for row in told["rows"]:
        one = dict(zip(told["columns"], row))
        assert one["most"] == wanted[one["name"]]["peak_owned"]
        assert one["stalls"] == (one["name"] == "net")
    assert {row[0] for row in told["rows"]} == {"net", "net.0", "net.0.mlp"}


def _event(kind, address=0, size=0, aux=0, scope=1, category=1, flags=0):
    return (0, address, size, aux or size, scope, 0, 1, 0, kind, category, 0,
            flags)


def _left(*more):
    """A block of 3 MiB of layer 1 and one of 1 MiB of layer 2, in two handles of
    2 MiB, of which the second has left: a part of the first block stayed."""
    run = model.Run(scopes=["(no scope)", "a", "b", "c"])
    run.pools.append(model.Pool(0, 0))
    out, back = model.EVICTED, model.RESTORED
    events = [
        _event(Kind.SEGMENT_MAP, 0, 4 * MIB),
        _event(Kind.ALLOC, 0, 3 * MIB),
        _event(Kind.ALLOC, 3 * MIB, MIB, scope=2),
        _event(Kind.FREE_REQUESTED, 0, 3 * MIB, flags=out),
        _event(Kind.FREE_COMPLETED, 0, 3 * MIB, flags=out),
        _event(Kind.FREE_REQUESTED, 3 * MIB, MIB, scope=2, flags=out),
        _event(Kind.FREE_COMPLETED, 3 * MIB, MIB, scope=2, flags=out),
        _event(Kind.SEGMENT_UNMAP, 2 * MIB, 2 * MIB, flags=out),
        _event(Kind.ALLOC, 0, 2 * MIB, flags=out),
        _event(Kind.MOVE, 2 * MIB, 2 * MIB, category=model.move(0, 1))]
    kinds = {"down": [_event(Kind.MOVE, 2 * MIB, 2 * MIB,
                             category=model.move(1, 2))],
             "back": [_event(Kind.FREE_REQUESTED, 0, 2 * MIB, flags=back),
                      _event(Kind.FREE_COMPLETED, 0, 2 * MIB, flags=back),
                      _event(Kind.SEGMENT_MAP, 2 * MIB, 2 * MIB, flags=back),
                      _event(Kind.ALLOC, 0, 3 * MIB, flags=back),
                      _event(Kind.ALLOC, 3 * MIB, MIB, scope=2, flags=back),
                      _event(Kind.MOVE, 2 * MIB, 2 * MIB,
                             category=model.move(1, 0))],
             "told early": [_event(Kind.MOVE, 2 * MIB, 2 * MIB,
                                   category=model.move(1, 0))],
             "freed": [_event(Kind.FREE_REQUESTED, 0, 2 * MIB),
                       _event(Kind.FREE_COMPLETED, 0, 2 * MIB)],
             "freed away": [_event(Kind.FREED_AWAY, 3 * MIB, MIB, scope=2)],
             "relabel": [_event(Kind.RELABEL, 3 * MIB, MIB, scope=3,
                                category=3)]}
    for what in more:
        events += kinds[what]
    run.events = np.array(events, model.EVENT)
    run.events["time"] = np.arange(len(events)) * 1000
    run.duration = len(events) * 1000
    run.devices = [model.Device(0, "card", 4 * MIB, (), None)]
    return run


@pytest.mark.parametrize("more, wanted", [
    ([], [("a", 2, 1, 0), ("b", 0, 1, 0)]),
    (["down"], [("a", 2, 0, 1), ("b", 0, 0, 1)]),
    (["back"], [("a", 3, 0, 0), ("b", 1, 0, 0)]),
    (["told early"], [("a", 2, 1, 0), ("b", 0, 1, 0)]),
    (["freed"], [("b", 0, 1, 0)]),
    (["freed away"], [("a", 2, 1, 0)]),
    (["relabel"], [("a", 2, 1, 0), ("c", 0, 1, 0)]),
    (["freed", "freed away"], [])])
def test_bytes_are_told_on_the_tier_where_they_are(more, wanted):
    walked = replay.Replay(_left(*more), 0)
    rows = residency(walked, len(walked.run.events) - 1, 400)
    assert [(row[0], *(size / MIB for size in row[2:]))
            for row in rows] == wanted
    # Its blocks' ends are told before the move of their handle.
    assert [row[3] for row in residency(walked, 8, 400)] == [MIB, MIB]
    assert residency(walked, 2, 400) == [
        ["a", "parameter", 3 * MIB, 0, 0], ["b", "parameter", MIB, 0, 0]]
    assert away(walked, replay.BEFORE) == []


def test_what_stayed_of_a_block_is_the_blocks_wherever_it_begins():
    run = model.Run(scopes=["(no scope)", "a"])
    out = model.EVICTED
    run.events = np.array([
        _event(Kind.ALLOC, MIB, 3 * MIB),
        _event(Kind.FREE_REQUESTED, MIB, 3 * MIB, flags=out),
        _event(Kind.FREE_COMPLETED, MIB, 3 * MIB, flags=out),
        _event(Kind.ALLOC, 2 * MIB, 2 * MIB, flags=out),
        _event(Kind.MOVE, 0, 2 * MIB, category=model.move(0, 1)),
        _event(Kind.FREE_REQUESTED, 2 * MIB, 2 * MIB),
        _event(Kind.FREE_COMPLETED, 2 * MIB, 2 * MIB)], model.EVENT)
    run.devices = [model.Device(0, "card", 4 * MIB, (), None)]
    walked = replay.Replay(run, 0)
    assert residency(walked, 4, 400) == [["a", "parameter", 2 * MIB, MIB, 0]]
    assert residency(walked, 5, 400) == []


def test_a_unit_that_is_not_whole_is_given_back_where_nothing_lives():
    maker = made_runs.Maker()
    maker.segment(3 * MIB, expandable=True)
    maker.alloc(MIB, 1, 1)
    told = device_of(maker.finish())
    (_, _, _, (_, free)), = told["addresses"]["segments"]
    assert free[:2] == [MIB, 2 * MIB] and free[3] == MIB
    assert told["peak"]["parts"]["stranded"] == MIB
    assert told["addresses"]["pinners"]["rows"] == [
        ["net", "parameter", 1, MIB, MIB, MIB]]


@_SOME
@example(227, 180)  # most is held where a stretch begins
@given(st.integers(0, 1 << 30), st.integers(20, 250))
def test_of_few_points_none_cuts_a_peak_off(seed, steps):
    run, maker = made_runs.make(seed, steps)
    told = timeline(replay.Replay(run, 0), Bounds(points=20))
    end = max(run.duration, maker.time)
    most, before = {}, 0  # what a stretch begins with is of it, too
    for event, sums in zip(maker.events, maker.sums):
        if event[8] <= Kind.FREE_COMPLETED:
            stretch = int(event[0] * (10 / end))
            most[stretch] = max(most.get(stretch, before), sums[0])
            before = sums[0]
    assert set(most.values()) <= set(told["allocated"])
    assert len(told["times"]) <= 23


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 90)), min_size=1,
                max_size=60), st.integers(1, 20))
def test_bars_part_where_nothing_is_under_way(some, most):
    maker = made_runs.Maker()
    for end, took in sorted(some):
        maker.time = end - 1000
        maker.put(Kind.MOVE, 0, 7, min(took, end), category=1)
    run = maker.finish()
    (lane,) = moves(run, 0, Bounds(bars=most))["lanes"]
    under_way = {at for end, took in some
                 for at in range(max(0, end - took), end)}
    bars = lane["bars"]
    assert len(bars) <= most
    assert sum(bar[3] for bar in bars) == len(some)
    assert all(one[1] <= two[0] for one, two in zip(bars, bars[1:]))
    drawn = {at for bar in bars for at in range(bar[0], bar[1])}
    assert under_way <= drawn
    if len(bars) < most:
        assert drawn == under_way
