# SPDX-License-Identifier: Apache-2.0
"""Bounds of a report's size, whatever was recorded, and its packed form."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

import made_runs
from report_data import MIB, adds_up, device_of
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.report import page
from stratalloc.telemetry.report.bounds import (NO_ROOM, NOT_KNOWN, Bounds,
                                                Stacks, levels, name)
from stratalloc.telemetry.report.data import _run, data
from stratalloc.telemetry.report.fitting import MOST, fitting
from stratalloc.telemetry.report.flame import flame
from stratalloc.telemetry.report.packed import packed, unpacked
from stratalloc.telemetry.report.residency import residency

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
        count, marks=100))]))) for count in (20_000, 80_000))
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
    adds_up(device["flame"])
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
    adds_up(top)

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
    told = device_of(run)
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
