# SPDX-License-Identifier: Apache-2.0
"""What a report has: sums that are the replay's, a size that has a bound, and
names that stay text."""

import dataclasses
import html.parser
import json
import os
import stat

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import made_recordings
import made_runs
from stratalloc import cli
from stratalloc.telemetry import model, recording, replay
from stratalloc.telemetry.analysis import curves
from stratalloc.telemetry.exports.layers import layers
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report import page
from stratalloc.telemetry.report.bounds import (NO_ROOM, NOT_KNOWN, Bounds,
                                                Stacks, levels, name)
from stratalloc.telemetry.report.data import _run, data
from stratalloc.telemetry.report.curves import timeline
from stratalloc.telemetry.report.fitting import MOST, fitting
from stratalloc.telemetry.report.flame import flame
from stratalloc.telemetry.report.moves import moves
from stratalloc.telemetry.report.packed import packed, unpacked
from stratalloc.telemetry.report.residency import away, residency

MIB = 1 << 20
_SOME = settings(max_examples=40, deadline=None)
_RUNS = given(st.integers(0, 1 << 30), st.integers(1, 250), st.booleans())


def _device(run):
    told = data([("run", run)])
    assert json.loads(json.dumps(told, allow_nan=False))["runs"]
    return told["runs"][0]["devices"][0]


@_SOME
@_RUNS
def test_curves_are_the_models(seed, steps, tiering):
    run, maker = made_runs.make(seed, steps, tiering=tiering)
    told = _device(run)["timeline"]
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


def _adds_up(node):
    inside = node.get("in")
    if inside:
        assert sum(one["b"] for one in inside) == node["b"]
        assert sum(one["c"] for one in inside) == node["c"]
        for one in inside:
            _adds_up(one)


@_SOME
@_RUNS
def test_panels_add_up_to_the_peak(seed, steps, tiering):
    run, maker = made_runs.make(seed, steps, tiering=tiering)
    told = _device(run)
    most = max((one[0] for one in maker.sums), default=0)
    peak = told["peak"]
    assert peak["allocated"] == told["flame"]["b"] == most
    _adds_up(told["flame"])
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
    told = _device(run)
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
    told = _device(run)
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
    told = _device(run)["layers"]
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
    told = _device(maker.finish())
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


_FEW = Bounds(100, 20, 100, 30, 200, 50, 60, 40)


def _large(layers_=600):
    """More of everything than _FEW have room for."""
    maker = made_runs.Maker([f"net.{'x' * 60}.{i}.{i % 7}"
                             for i in range(layers_)])
    maker.run.sites += [model.Site(f"/p/{'y' * 60}{i}.py", 1 + i, "f" * 60)
                        for i in range(layers_)]
    maker.segment(8 * MIB)
    maker.now = lambda: (0, 0, 0, 0)  # nobody asks
    at = 0x7000_0000_0000
    for i in range(2 * layers_):
        maker.living[at] = made_runs.Living(at, 1024, 1024, 1 + i % layers_,
                                            i % 9, 4 + i % layers_, 1)
        maker.events.append((i * 1000, at, 1024, 1024, 1 + i % layers_,
                             4 + i % layers_, 1, 0, Kind.ALLOC, i % 9, 0, 0))
        at += 1024 if i % 3 else 1536
    maker.time = 2000 * layers_
    for i in range(layers_):
        maker.time += 10_000
        maker.put(Kind.MOVE, 2 * MIB * i, 2 * MIB, 5000,
                  category=model.move(i % 2, 1 - i % 2))
        maker.put(Kind.MARK, scope=1 + i)
        maker.put(Kind.LATE, 0, 2 * MIB, 900, 1 + i)
    return maker.finish()


def test_a_report_has_a_bound_that_events_do_not_move():
    run = _large()
    told, most = _run(  # pylint: disable=protected-access
        "run", run, _FEW)["devices"][0], _FEW
    line = told["timeline"]
    assert len(line["times"]) <= most.points + 3
    assert (len(line["marks"]), line["marks_in_all"]) == (most.marks, 600)
    assert len(told["stacks"]) == most.stacks
    blocks = [block for _, _, _, found in told["addresses"]["segments"]
              for block in found]
    # What is left out lies between those that are shown.
    assert len(blocks) <= 2 * most.blocks + 2
    assert sum(block[1] for block in blocks) == 8 * MIB
    assert len(told["layers"]["rows"]) == most.rows
    assert told["layers"]["rest"][0] == f"({600 - most.rows} more)"
    assert sum(row[1] for row in told["layers"]["rows"]) + told["layers"][
        "rest"][1] == told["peak"]["allocated"]
    rows = told["residency"]["peak"]
    assert len(rows) == most.rows
    assert _by_category(rows) == _at_peak(told)
    assert sum(_by_category(rows).values()) == told["peak"]["allocated"]
    assert all(len(one["bars"]) <= most.bars for one in told["moves"]["lanes"])


def _by_category(rows):
    """category -> bytes on the device of rows of a residency."""
    found = {}
    for _, category, size, _, _ in rows:
        found[category] = found.get(category, 0) + size
    return found


def _at_peak(told):
    """The same of its timeline."""
    line = told["timeline"]
    at = line["allocated"].index(told["peak"]["allocated"])
    return {category: column[at]
            for category, column in line["categories"].items() if column[at]}


def test_layers_that_are_summed_up_keep_their_category():
    """Of a model with more layers than a table has rows."""
    maker = made_runs.Maker([f"net.{i}" for i in range(300)])
    for scope in range(1, 301):
        maker.alloc(4096, scope, model.CATEGORIES.index("parameter"))
        maker.alloc(8192, scope, model.CATEGORIES.index("optimizer_state"))
    run = maker.finish()
    walked = replay.Replay(run, 0)
    for most in (2, 40, 400, 600):
        rows = residency(walked, walked.peak, most)
        assert len(rows) <= most
        assert _by_category(rows) == {"parameter": 300 * 4096,
                                      "optimizer_state": 300 * 8192}
    # The largest are told one by one, and what is left by category.
    assert residency(walked, walked.peak, 402)[399:] == [
        residency(walked, walked.peak, 600)[399],
        ["(200 smaller)", "parameter", 200 * 4096, 0, 0]]


def test_devices_share_what_a_page_has_room_for():
    assert Bounds().shared(2) == Bounds()
    assert Bounds().scaled(1) == Bounds()
    assert max(dataclasses.astuple(Bounds().scaled(0))) == 8
    assert Bounds().scaled(.5).blocks == Bounds().blocks // 2
    for count in (3, 8, 64):
        for one, all_ in zip(*map(dataclasses.astuple, (
                Bounds().shared(count), Bounds()))):
            assert one == max(40, 2 * all_ // count)


def test_four_times_the_events_are_no_larger_page():
    small, large = (len(page.page(data([("run", made_runs.many(
        count, marks=100))]))) for count in (40_000, 160_000))
    assert large < 1.25 * small < MIB


def _many_emoji():
    """3000 layers and as many frames, each name of 150 emoji."""
    maker = made_runs.Maker(["🔥" * 145 + f"{i:05}" for i in range(3000)])
    first = len(maker.run.sites)
    maker.run.sites += [model.Site("🧊" * 145 + f"{i:05}.py", 1, "",
                                   first + i - 1 if i % 8 else 0)
                        for i in range(3000)]
    maker.segment(16 * MIB)
    maker.now = lambda: (0, 0, 0, 0)  # nobody asks
    for i in range(3000):
        at = 0x7000_0000_0000 + 4096 * i
        maker.living[at] = made_runs.Living(at, 4096, 4096, 1 + i, i % 9,
                                            first + i, 1)
        maker.put(Kind.ALLOC, at, 4096, 4096, 1 + i, first + i, i % 9)
        maker.put(Kind.LATE, 0, 4096, 900, 1 + i)
    return maker.finish()


def test_a_page_has_a_bound_whatever_names_are():
    run = _many_emoji()
    whole = page.page(data([("run", run)]))
    told = fitting([("run", run)])
    assert len(page.page(told).encode()) <= MOST
    assert told == data([("run", run)])  # each name is in it once
    assert "🔥" in whole and "\\u" not in whole.partition('id="data">')[2]
    # What has no room is left out, and told by sums as ever.
    less = fitting([("run", run)], MOST // 4)
    assert MOST // 16 < len(page.page(less).encode()) <= MOST // 4
    device = less["runs"][0]["devices"][0]
    _adds_up(device["flame"])
    assert _by_category(device["residency"]["peak"]) == _at_peak(device)
    # There is an end to it.
    assert fitting([("run", run)], 1) == data([("run", run)], .01)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text()
    | st.sampled_from(["@", "@0", "@@1", "of several", '"@2"', "\\", "</script>"]),
    lambda inside: st.lists(inside) | st.dictionaries(
        st.text() | st.sampled_from(["@1", "@", "of several"]), inside),
    max_leaves=30)


@given(_JSON)
def test_what_is_packed_is_what_it_was(told):
    said = packed(told)
    assert unpacked(said) == told
    assert not set("<>&\u2028\u2029") & set(said)
    assert said.count("\n") == 1 and said.encode()


def test_a_name_is_packed_once():
    said = packed({"a": ["a long name", "ab"], "b": [["a long name"], "ab"]})
    assert said == '[["a long name"],\n{"a":["@0","ab"],"b":[["@0"],"ab"]}]'
    # What a name is stays, whatever encoders say.
    assert unpacked(packed(["lone \ud800", "@0"])) == ["lone \ud800", "@0"]


def test_a_flame_graph_of_few_nodes_adds_up():
    run = _large()
    holders = replay.Replay(run, 0).holders()
    top = flame(run, holders, 100)
    _adds_up(top)

    def count(node):
        return 1 + sum(map(count, node.get("in", ())))
    assert 100 <= count(top) <= 200 < len(holders)
    assert top["b"] == sum(one.bytes for one in holders)


def test_names_and_stacks_have_a_bound():
    assert len(name("n" * 10240)) < 170
    deep = ".".join(str(i) for i in range(5000))
    assert len(levels(deep)) == 20 and levels("a.b") == ["a", "b"]
    run = made_runs.story()
    stacks = Stacks(run, 1)
    assert stacks.add(0) == NOT_KNOWN
    assert stacks.add(3) == stacks.add(3) == 0 and stacks.outer == [0]
    assert stacks.add(2) == NO_ROOM
    assert [stacks.frames[i] for i in stacks.stacks[0]] == [
        "/p/net.py:33 attend", "/p/net.py:20 forward", "/p/train.py:10 main"]


def test_the_largest_blocks_have_their_stacks_and_the_rest_say_why_not():
    run = made_runs.called(450, 30)
    told = _device(run)
    blocks = sorted(
        (block for _, _, _, found in told["addresses"]["segments"]
         for block in found if block[2] == 0), key=lambda block: -block[1])
    assert len(blocks) == 451
    have = [block[6] for block in blocks]
    assert sorted(have[:400]) == list(range(400))
    assert have[400:] == [NO_ROOM] * 50 + [NOT_KNOWN]
    # What lies outermost there is no room for: it is counted.
    assert {len(one) for one in told["stacks"]} == {24}
    assert told["outer"] == [31 - 24] * 400
    assert told["frames"][told["stacks"][0][0]] == "/p/own.py:450 f"


class _Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.scripts = [], False, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data_):
        if self.inside:
            self.scripts[-1] += data_

    def handle_endtag(self, tag):
        self.inside = False


def test_names_that_would_run_are_text_in_the_file():
    told = data([(made_runs.HOSTILE[0], made_runs.hostile())])
    found = _Elements(page.page(told))
    plain = _Elements(page.page(data([("run", model.Run())])))
    assert found.found == plain.found
    assert found.found.count("script") == 2
    assert "<" not in found.scripts[0]
    # JSON is what it was, and ends where its element does.
    assert unpacked(found.scripts[0]) == json.loads(json.dumps(told))
    assert "<script>alert(1)</script>" in str(told)
    assert found.scripts[1] == plain.scripts[1]


def test_nothing_is_a_page_that_says_so():
    told = data([("run", model.Run())])
    assert told["runs"][0]["devices"] == []
    assert told["runs"][0]["verdict"]["kind"] == "nothing"
    assert page.page(told)


def test_settings_are_what_json_has():
    run = made_runs.story()
    run.settings = {"a": 1, "b": float("nan"), "c": [1], "d": True, "e": None,
                    "f": "x" * 999, "g": .5}
    told = data([("run", run)])["runs"][0]["settings"]
    assert list(told) == ["a", "d", "e", "f", "g"] and len(told["f"]) < 170
    assert page.page(data([("run", run)]))


def test_ranks_are_side_by_side_and_the_odd_one_is_told():
    runs = []
    for rank in range(5):
        maker = made_runs.Maker()
        maker.alloc(4 * MIB if rank == 3 else 2 * MIB, 1, 1)
        runs.append((f"rank{rank}", maker.finish()))
    told = data(runs)
    assert [row["run"] for row in told["ranks"]] == [one for one, _ in runs]
    assert [row["off"] for row in told["ranks"]] == [0, 0, 0, 1000, 0]
    assert told["ranks"][3]["categories"] == {"parameter": 4 * MIB}
    assert data(runs[:1])["ranks"] == []
    assert data([runs[0], ("none", model.Run())])["ranks"] == []
    assert len(data([("two", made_runs.devices())])["ranks"]) == 2


@pytest.mark.parametrize("sizes, wanted", [
    ((100, 120), (0, 200)), ((130, 100), (300, 0)), ((100, 109), (0, 90)),
    ((0, 100), (0, None)), ((0, 0), (0, 0)), ((1000, 1100), (0, 100)),
    ((100, 100, 130, 130), (0, 0, 300, 300)), ((100, 85, 120), (0, -150, 200)),
    ((10000, 10999), (0, 99))])
def test_a_peak_is_compared_with_one_that_was(sizes, wanted):
    runs = []
    for rank, size in enumerate(sizes):
        maker = made_runs.Maker()
        if size:
            maker.alloc(512 * size, 1, 1)
        else:
            maker.segment(2 * MIB)
        runs.append((f"rank{rank}", maker.finish()))
    assert tuple(row["off"] for row in data(runs)["ranks"]) == wanted


# The command.


@pytest.fixture(name="file")
def _file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.strata"
    path.write_bytes(made_recordings.file_of(*made_recordings.two_blocks()))
    return path


def _told(capfd, *argv):
    code = cli.main(["report", *map(str, argv)])
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_a_page_is_the_users_alone_and_says_its_verdict(capfd, file):
    code, out, error = _told(capfd, file)
    assert (code, error) == (0, "") and "of the card's 1 MiB" in out
    made = file.parent / "report.html"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert unpacked(_Elements(made.read_text()).scripts[0]) == json.loads(
        json.dumps(data([("r.strata", recording.read(file))])))


def test_machines_get_the_data_of_every_file(capfd, file):
    (file.parent / "two").mkdir()
    other = file.parent / "two" / "r.strata"
    other.write_bytes(file.read_bytes())
    code, _, _ = _told(capfd, "r.strata", "two/r.strata", "-o", "a.html",
                       "--json", "a.json")
    assert code == 0
    with open("a.json", encoding="utf-8") as made:
        told = json.load(made)
    assert [one["name"] for one in told["runs"]] == [
        "r.strata", "two/r.strata"]
    assert len(told["ranks"]) == len(told["recording"]) == 2
    assert told["path"] == "a.html"


@pytest.mark.parametrize("words, code, says", [
    (["FILE", "-o", "FILE"], 2, "which would be lost"),
    (["other", "FILE", "-o", "FILE"], 2, "which would be lost"),
    (["FILE", "--json", "FILE"], 2, "which would be lost"),
    (["FILE", "--json", "report.html"], 2, "-o's file, too"),
    (["FILE", "-o", "-"], 2, "give the name of a file"),
    (["FILE", "-o", "no/such/x.html"], 1, "cannot be written"),
    (["nope"], 2, "there is no file nope"), ([], 2, "Missing"),
    (["FILE", "text"], 1, "text is not a snapshot")])
def test_what_cannot_be_done_is_said_and_nothing_is_lost(capfd, file, words,
                                                         code, says):
    before = file.read_bytes()
    (file.parent / "other").write_bytes(before)
    (file.parent / "text").write_text("no recording")
    got, out, error = _told(capfd, *(
        str(file) if word == "FILE" else word for word in words))
    assert (got, out) == (code, "") and says in error
    assert file.read_bytes() == before
    assert sorted(os.listdir()) == ["other", "r.strata", "text"]


def test_what_is_missing_is_said_beside_it_and_in_it(capfd, file):
    head, events = made_recordings.two_blocks()
    head.update(overwritten=7, complete_from=30)
    file.write_bytes(made_recordings.file_of(head, events))
    code, out, error = _told(capfd, file)
    assert code == 0 and "7 events are missing" in error
    assert "7 events are missing" in out
    told = _Elements((file.parent / "report.html").read_text()).scripts[0]
    assert unpacked(told)["runs"][0]["missing"].startswith("7 events")
