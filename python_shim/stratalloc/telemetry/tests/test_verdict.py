# SPDX-License-Identifier: Apache-2.0
"""What a run comes to: each kind of verdict of a run that was made for it, and
sentences that say no more than was recorded."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis import more_memory
from stratalloc.telemetry.analysis.traffic import covered, traffic
from stratalloc.telemetry.analysis.verdict import KINDS, verdict
from stratalloc.telemetry.model import Kind

MIB = 1 << 20
MS = 1_000_000
_OUT, _IN = model.move(0, 1), model.move(1, 0)


def _cards(maker, capacity, **change):
    run = maker.finish()
    run.devices[0].capacity = capacity
    return dataclasses.replace(run, **change)


def _moves(maker, count, took, kind=Kind.MOVE, categories=(_OUT, _IN)):
    for i in range(count):
        maker.time += took
        maker.put(kind, i * 2 * MIB, 2 * MIB, took,
                  category=categories[i % len(categories)])


def _moving(stall, categories=(_OUT, _IN)):
    """10 moves of 2 ms each, as long again in which nothing moves, and a stall
    of so many ms."""
    maker = made_runs.Maker()
    maker.alloc(5 * MIB, 1, 1)
    _moves(maker, 10, 2 * MS, categories=categories)
    maker.time += 20 * MS
    maker.put(Kind.STALL, 0, 0, stall * MS, 1)
    return _cards(maker, 8 * MIB)


def _roomy():
    maker = made_runs.Maker()
    maker.alloc(5 * MIB)
    return _cards(maker, 100 * MIB)


def _growing():
    maker = made_runs.Maker()
    for _ in range(30):
        maker.alloc(100_000, 2, 5)
        maker.put(Kind.MARK, scope=1)
    return _cards(maker, 100 * MIB)


def _stranded():
    maker = made_runs.Maker()
    for at in [maker.alloc(MIB, 1 + i % 2) for i in range(40)][::2]:
        maker.free(at)
    maker.segment(2 * MIB)
    return _cards(maker, 60 * MIB)


def _refused(asked):
    maker = made_runs.Maker()
    maker.alloc(5 * MIB, 1, 1)
    maker.put(Kind.OOM, 3 * MIB, asked, scope=2)
    return _cards(maker, 8 * MIB)


def _limited(run, limit):
    return dataclasses.replace(run, settings={"gpu_limit": limit})


@pytest.mark.parametrize("run, kind, says", [
    (_roomy(), "fits", "5 MiB of the card's 100 MiB was allocated (5 %)"),
    (_moving(30), "bus_bound", "bus-bound: 10 MiB left the device and 10 MiB "
     "came back, from the host at 1000 MiB/s; a thread waited for memory in 75 "
     "% of 0.04 s"),
    (_moving(1), "moving", "memory moved: 10 MiB left"),
    (_moving(30, [model.move(2, 0)]), "disk_bound", "disk-bound: 0 B left"),
    (_growing(), "growing", "net.0 (activation) by about 98 KiB a step (30 "
     "steps, from mark to mark)"),
    (_stranded(), "fragmented", "of the 42 MiB that was reserved at most, 20 "
     "MiB was free and could not be given back"),
    (_refused(4 * MIB), "out_of_memory", "1 request was refused, at 0.000 s: 4 "
     "MiB for net.0 while 5 MiB was allocated and 3 MiB free, 1 MiB less than "
     "that"),
    (_refused(2 * MIB), "out_of_memory", "3 MiB free, 3 MiB of that not "
     "reserved; the largest hole in what was reserved had 0 B"),
    (_limited(_refused(2 * MIB), 6 * MIB), "out_of_memory", "while 5 MiB was "
     "allocated and 1 MiB free of the 6 MiB that gpu_limit allows of the card's "
     "8 MiB, 1 MiB less than that"),
    (_limited(_refused(2 * MIB), 7 * MIB), "out_of_memory", "2 MiB free of the "
     "7 MiB that gpu_limit allows of the card's 8 MiB, 2 MiB of that not "
     "reserved; the largest hole"),
    (_limited(_refused(4 * MIB), 4 * MIB), "out_of_memory", "0 B free of the 4 "
     "MiB that gpu_limit allows of the card's 8 MiB, 4 MiB less than that"),
    *((_limited(_refused(4 * MIB), limit), "out_of_memory", "allocated and 3 "
       "MiB free, 1 MiB less than that") for limit in (
           0, 8 * MIB, 1 << 40, "6 MiB", None, True, -1)),
    (_limited(_roomy(), 20 * MIB), "fits", "5 MiB of the 20 MiB that gpu_limit "
     "allows of the card's 100 MiB was allocated (25 %)"),
    (_limited(_roomy(), 5 * MIB), "near_edge", "5 MiB of the 5 MiB that "
     "gpu_limit allows of the card's 100 MiB was allocated at the peak (100 %)"),
    (model.Run(), "nothing", "no memory of a device was allocated"),
    (_cards(made_runs.Maker(), 8 * MIB), "nothing", "no memory")])
def test_each_kind_of_a_run_that_was_made_for_it(run, kind, says):
    found = verdict(run)
    assert found.kind == kind in KINDS and says in found.sentence, found
    assert json.loads(json.dumps(found.to_dict()))["kind"] == kind
    assert all(isinstance(one, int) for one in found.numbers.values())


@pytest.mark.parametrize("capacity, kind", [
    (5 * MIB + MIB // 2, "near_edge"), (10 * MIB, "fits"), (0, "peaked")])
def test_the_card_decides_what_a_peak_is(capacity, kind):
    run = _roomy()
    run.devices[0].capacity = capacity
    found = verdict(run)
    assert found.kind == kind
    assert ("not recorded" in found.sentence) is (capacity == 0)


def test_without_a_card_nothing_is_a_share_of_it():
    """Of torch's snapshots, none of which says how large the card is."""
    run = _stranded()
    run.devices[0].capacity = 0
    found = verdict(run)
    assert (found.kind, found.others) == ("peaked", ())
    assert ("42 MiB reserved, on a card whose size was not recorded; 20 MiB of "
            "that was free and could not be given back") in found.sentence
    assert "given back" not in verdict(_cards(made_runs.Maker(), 0)).sentence
    # Of a card that is larger than that holes are no matter.
    assert verdict(_cards_of(_stranded(), 100 * MIB)).kind == "fits"
    limited = _limited(_cards_of(_stranded(), 100 * MIB), 60 * MIB)
    assert verdict(limited).kind == "fragmented"
    run.settings["gpu_limit"] = 60 * MIB
    assert verdict(run).kind == "fragmented"


def _cards_of(run, capacity):
    run.devices[0].capacity = capacity
    return run


def test_what_is_missing_is_said_and_nothing_is_worked_out_of_it():
    run = _refused(4 * MIB)
    run.dropped, run.torn = 7, True
    said = verdict(run)
    assert "7 events are missing" in said.sentence
    assert "did not end by itself" in said.sentence
    assert "less than that" not in said.sentence
    assert "free" not in said.numbers
    run = _roomy()
    run.devices[0].start = run.devices[0].end = None
    assert "before the recording is not in it" in verdict(run).sentence


def test_the_gravest_is_told_and_the_rest_beside_it():
    run = made_runs.story()
    found = verdict(run)
    assert found.kind == "out_of_memory"
    assert [kind for kind, _ in found.others] == ["moving"]
    run.events["device"] = 1
    run.devices.append(dataclasses.replace(run.devices[0], index=1))
    assert verdict(run).sentence.startswith("device 1: out of memory")
    assert verdict(run).line == verdict(run).sentence
    assert verdict(run, 0).kind != "out_of_memory"
    with pytest.raises(ValueError, match="no device 5"):
        verdict(run, 5)


def test_cards_of_one_kind_share_a_line():
    run = _roomy()
    run.devices.append(dataclasses.replace(run.devices[0], index=1))
    again = run.events.copy()
    again["device"] = 1
    run.events = np.concatenate([run.events, again])
    said = verdict(run)
    assert said.line.startswith("device 0: fits with room")
    assert said.line.count("; device 1: fits with room") == 1
    assert type(said).of(json.loads(json.dumps(said.to_dict()))) == said


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=20))
def test_time_in_which_something_is_under_way_is_counted_once(some):
    some = [(begin, begin + length) for begin, length in some]
    wanted = set()
    for begin, end in some:
        wanted.update(range(begin, end))
    assert covered(*(np.array(list(column), "<i8") for column in (
        zip(*some) if some else ((), ())))) == len(wanted)


def test_threads_that_wait_together_wait_once():
    maker = made_runs.Maker()
    maker.time += 20 * MS
    for _ in range(3):
        maker.put(Kind.STALL, 0, 0, 10 * MS)
    found = traffic(maker.finish(), 0)
    assert found.stalls == 3
    assert 10 * MS <= found.stalled < 11 * MS


def _cycle(rounds, has):
    """Four layers of 4 MiB, one after another, on a card that had room for so
    many bytes; each time as much moved as the model says."""
    maker = made_runs.Maker([f"net.{i}" for i in range(4)])
    for scope in range(1, 5):
        maker.alloc(4 * MIB, scope, 1)
    for _ in range(rounds):
        for scope in range(1, 5):
            maker.enter(scope)
            maker.free(maker.alloc(512, scope, 7))
            maker.leave()
            _moves(maker, 4, 2 * MS)
            maker.put(Kind.STALL, 0, 0, 2 * MS, scope)
    run = maker.finish()
    segments = np.flatnonzero(run.events["kind"] == Kind.SEGMENT_ALLOC)
    run.events["bytes"][segments] = has // len(segments)
    run.devices[0].end = None
    return run


def test_what_more_memory_would_save_is_an_estimate():
    run = _cycle(8, 14 * MIB)
    assert replay.Replay(run, 0).reserved.most() // MIB == 13
    found = verdict(run)
    assert found.kind == "bus_bound"
    assert "by an estimate" in found.sentence and "more memory" in (
        found.sentence)
    had = replay.Replay(run, 0).reserved.most()
    assert found.numbers["more"] in (had, had // 2, had // 4, had // 8)
    moved = found.numbers["left_device"] + found.numbers["came_back"]
    assert .25 * moved <= found.numbers["saved"] <= moved
    assert "estimate" not in verdict(run, estimate=False).sentence
    lossy = dataclasses.replace(run, dropped=1)
    assert "estimate" not in verdict(lossy).sentence


def test_an_estimate_that_is_far_from_what_moved_is_not_told():
    run = _cycle(8, 14 * MIB)
    moves = run.events["kind"] == Kind.MOVE
    run.events["bytes"][moves] *= 20
    assert "estimate" not in verdict(run).sentence


def test_an_estimate_is_not_begun_that_would_take_long(monkeypatch):
    run = _cycle(8, 14 * MIB)
    for name in ("_STEPS", "_EVENTS"):
        with monkeypatch.context() as patch:
            patch.setattr(more_memory, name, 20)
            assert "estimate" not in verdict(run).sentence


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 300), st.booleans(),
       st.integers(0, 5))
def test_every_run_has_a_verdict(seed, steps, tiering, first):
    run, _ = made_runs.make(seed, steps, first, tiering=tiering)
    found = verdict(run)
    assert found.kind in KINDS and found.sentence.isprintable()
    assert ("missing" in found.sentence) >= bool(run.dropped)
    ranks = [KINDS.index(kind) for kind in (
        found.kind, *(kind for kind, _ in found.others))]
    assert ranks == sorted(ranks)


def test_a_name_does_not_break_a_sentence():
    run = made_runs.hostile()
    for scope in range(1, 1 + len(made_runs.HOSTILE)):
        run.events["scope"][run.events["kind"] == Kind.OOM] = scope
        said = verdict(run).sentence
        assert said.isprintable() and len(said) < 500
        said.encode()
