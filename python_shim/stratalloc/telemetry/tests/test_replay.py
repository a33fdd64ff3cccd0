# SPDX-License-Identifier: Apache-2.0
"""Replay: sums, peak and holders are those of the slow model, event by event."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import gaps, identities, model
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import BEFORE, Replay, blocks

MIB = 1 << 20
_NAMES = ("allocated", "active", "requested", "reserved")


def _curves(replay):
    return list(zip(*(getattr(replay, name).after.tolist()
                      for name in _NAMES)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 300), st.booleans())
def test_every_sum_is_the_models(seed, steps, sizes):
    run, maker = made_runs.make(seed, steps, sizes=sizes)
    replay = Replay(run, 0)
    assert _curves(replay) == maker.sums
    assert identities.check(run) == []
    allocated = [one[0] for one in maker.sums]
    assert replay.allocated.most() == max(allocated, default=0)
    if max(allocated, default=0):
        assert replay.peak == allocated.index(max(allocated))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 300), st.data())
def test_holders_are_the_models_at_the_end_and_at_the_peak(seed, steps, data):
    run, maker = made_runs.make(seed, steps)
    replay = Replay(run, 0)
    last = len(run.events) - 1
    found = {(one.scope, one.category, one.site): one.bytes
             for one in replay.holders(last)}
    assert found == maker.holders()
    assert sum(one.bytes for one in replay.holders()) == (
        replay.allocated.most())
    some = data.draw(st.integers(-1, last))
    assert sum(one.bytes for one in replay.holders(some)) == (
        replay.allocated.at(some))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 300), st.data())
def test_what_was_there_before_lost_events_follows_from_the_end(seed, steps,
                                                                data):
    whole, maker = made_runs.make(seed, steps)
    first = data.draw(st.integers(0, len(whole.events)))
    run = dataclasses.replace(whole, events=whole.events[first:], dropped=first)
    replay = Replay(run, 0)
    assert replay.anchored and gaps.exact(run, 0) == (first == 0)
    assert _curves(replay) == maker.sums[first:]
    before = maker.sums[first - 1] if first else (0, 0, 0, 0)
    assert tuple(getattr(replay, name).base for name in _NAMES) == before
    # And its segments are as they were: sizes, blocks, what is free.
    again = Replay(whole, 0)
    assert sorted((b.address, b.size, b.requested, b.state)
                  for b in blocks(replay.start)) == sorted(
        (int(again.rows["address"][i]), int(again.rows["size"][i]),
         int(again.rows["requested"][i]),
         model.ACTIVE if again.rows["asked"][i] >= first else model.PENDING)
        for i in again.live(first - 1, "done"))
    assert sum(one.size for one in replay.start) == before[3]
    assert [one for one in identities.check(run)
            if one.identity != "nesting"] == []


def test_parts_of_reserved_memory_add_up_and_say_what_is_stranded():
    maker = made_runs.Maker()
    small, large = maker.segment(4 * MIB), maker.segment(8 * MIB)
    held = maker.alloc(1000, scope=1)
    waits = maker.alloc(MIB, scope=2)
    maker.free(waits, complete=False)
    assert small <= held < small + 4 * MIB and large
    parts = Replay(maker.finish(), 0).reserved_parts(len(maker.events) - 1)
    assert parts.total == 12 * MIB
    assert (parts.allocated, parts.rounding) == (1024, 24)
    assert parts.pending == MIB
    assert parts.releasable == 8 * MIB
    assert parts.stranded == 3 * MIB - 1024


def test_of_mapped_segments_whole_units_can_be_given_back():
    maker = made_runs.Maker()
    for _ in range(4):
        maker.segment(2 * MIB, expandable=True)
    maker.alloc(512)
    replay = Replay(maker.finish(), 0)
    assert len(replay.ranges(len(maker.events))) == 1
    parts = replay.reserved_parts()
    assert (parts.releasable, parts.stranded) == (6 * MIB, 2 * MIB - 512)


def test_an_owner_that_changes_is_the_old_one_before():
    maker = made_runs.Maker()
    at = maker.alloc(4096, scope=1, category=0)
    maker.put(Kind.RELABEL, at, scope=3, category=1)
    run = maker.finish()
    replay = Replay(run, 0)
    assert [(h.scope, h.category) for h in replay.holders(1)] == [(1, 0)]
    assert [(h.scope, h.category) for h in replay.holders(2)] == [(3, 1)]


def test_a_relabel_reaches_what_is_here_of_a_block_that_is_partly_away():
    """And neither the block that was there before, nor one of another card."""
    maker = made_runs.Maker()
    at = maker.segment(8 * MIB)
    for flags, kind, address, size, scope in (
            (0, Kind.ALLOC, at, 4, 1), (0, Kind.FREE_COMPLETED, at, 4, 1),
            (0, Kind.ALLOC, at, 6, 1),
            (model.EVICTED, Kind.FREE_COMPLETED, at, 6, 1),
            (model.EVICTED, Kind.ALLOC, at, 2, 1),
            (model.EVICTED, Kind.ALLOC, at + 4 * MIB, 2, 1),
            (0, Kind.ALLOC, at + 6 * MIB, 2, 2),
            (0, Kind.RELABEL, at, 6, 3)):
        maker.put(kind, address, size * MIB, size * MIB, scope, category=1,
                  flags=flags)
    run = maker.finish()
    run.devices[0].end = None
    walked = Replay(run, 0)
    assert {(one.scope, one.bytes) for one in walked.holders(
        len(run.events) - 1)} == {(3, 4 * MIB), (2, 2 * MIB)}
    assert {(one.scope, one.bytes) for one in walked.holders(
        len(run.events) - 2)} == {(1, 4 * MIB), (2, 2 * MIB)}
    run.events["device"][-1] = 1
    assert {(one.scope, one.bytes) for one in Replay(run, 0).holders(
        len(run.events) - 1)} == {(1, 4 * MIB), (2, 2 * MIB)}


def test_a_relabel_reaches_pieces_that_touch():
    """As those of a block that came back handle by handle."""
    maker = made_runs.Maker()
    at = maker.segment(8 * MIB)
    for i in range(3):
        maker.put(Kind.ALLOC, at + i * 512, 512, 512, 1, flags=model.RESTORED)
    maker.put(Kind.RELABEL, at, 1536, 1536, 3)
    run = maker.finish()
    run.devices[0].end = None
    assert {(one.scope, one.bytes) for one in Replay(run, 0).holders(
        len(run.events) - 1)} == {(3, 1536)}


def test_what_the_end_says_of_an_owner_counts_where_no_event_changed_it():
    """Relabels of blocks that were at the same address before are none."""
    maker = made_runs.Maker()
    first = maker.alloc(1024, 1)
    maker.put(Kind.RELABEL, first, 1024, 1024, 3)
    maker.free(first)
    again = maker.alloc(1024, 1)
    assert again == first
    maker.living[again].scope = 2  # nothing told it event by event
    run = maker.finish()
    assert [one.scope for one in Replay(run, 0).holders(
        len(run.events) - 1)] == [2]


def test_blocks_that_return_from_a_tier_are_no_churn():
    maker = made_runs.Maker()
    at = maker.alloc(4096, scope=1)
    for kind, flags in ((Kind.FREE_REQUESTED, 1), (Kind.FREE_COMPLETED, 1),
                        (Kind.ALLOC, 2)):
        maker.put(kind, at, 4096, 4096, scope=1, flags=flags)
    replay = Replay(maker.finish(), 0)
    assert [one.bytes for one in replay.churn()] == [4096]
    assert replay.allocated.after.tolist() == [0, 4096, 0, 0, 4096]


def test_a_run_without_events_or_devices_has_sums_of_nothing():
    run = model.Run()
    assert identities.check(run) == []
    replay = Replay(run, 0)
    assert replay.peak == BEFORE and replay.holders() == []
    assert replay.reserved_parts().total == 0


def test_sites_that_call_in_a_circle_end():
    run = model.Run()
    run.sites += [model.Site("a", 1, "f", 2), model.Site("b", 2, "g", 1)]
    assert [one.file for one in run.stack(1)] == ["a", "b"]


def _break(maker, run):
    """name -> (the identity it violates, what breaks the run)."""
    events = run.events
    alloc = int(np.flatnonzero(events["kind"] == Kind.ALLOC)[0])
    freed = int(np.flatnonzero(events["kind"] == Kind.FREE_REQUESTED)[0])
    total = int(np.flatnonzero(events["kind"] == Kind.TOTALS)[0])

    def drop(at):
        run.events = np.delete(events, at)

    def put(name, at, value):
        events[name][at] = value

    def stats(key):
        run.devices[0].stats[key] += 512

    def end(**changes):
        segment = run.devices[0].end[0]
        run.devices[0].end = (dataclasses.replace(segment, **changes),
                              *run.devices[0].end[1:])

    def first_block(**changes):
        parts = run.devices[0].end[0].blocks
        end(blocks=(dataclasses.replace(parts[0], **changes), *parts[1:]))

    return {
        "a lost alloc": ("events", lambda: drop(_alloc_of(events, freed))),
        "a lost free": ("events give the end", lambda: drop(freed)),
        "a size that is another at the end": (
            "events give the end", lambda: put("aux", alloc, 4096)),
        "another size": ("requested <= active",
                         lambda: put("aux", alloc, 512)),
        "another total": ("totals", lambda: put("address", total, 3)),
        "a scope left twice": ("nesting", lambda: put("scope", int(
            np.flatnonzero(events["kind"] == Kind.SCOPE_LEAVE)[0]), 0)),
        "a block of no scope": ("indices", lambda: first_block(scope=99)),
        "a segment of no pool": ("indices", lambda: end(pool=99)),
        "a move to nowhere": ("indices", lambda: (
            put("kind", total, Kind.MOVE), put("category", total, 9))),
        "a scope that is none": ("indices", lambda: put("scope", 0, 99)),
        "counters": ("counters",
                     lambda: stats("allocated_bytes.all.current")),
        "a gap": ("segments", lambda: first_block(size=1 << 30)),
        "a state": ("events give the end", lambda: first_block(
            state=model.PENDING)),
        "a segment too large": ("segments", lambda: end(size=1 << 40)),
        "smaller than asked": ("segments",
                               lambda: first_block(requested=1 << 40)),
    }


def _alloc_of(events, freed):
    same = np.flatnonzero((events["address"] == events["address"][freed])
                          & (events["kind"] == Kind.ALLOC))
    return int(same[same < freed][-1])


def _to_break():
    maker = made_runs.Maker()
    maker.enter(1)
    maker.alloc(2000, scope=1)
    other = maker.alloc(3 * MIB, scope=1)
    maker.free(other, complete=False)
    allocated, _, _, reserved = maker.now()
    maker.put(Kind.TOTALS, allocated, reserved)
    maker.leave()
    return maker, maker.finish()


@pytest.mark.parametrize("name", sorted(_break(*_to_break())))
def test_check_names_the_identity_that_is_violated(name):
    maker, run = _to_break()
    assert identities.check(run) == []
    identity, breaks = _break(maker, run)[name]
    breaks()
    found = identities.check(run)
    assert identity in {one.identity for one in found}, found
    assert all(str(one) for one in found)


def test_a_fault_of_the_start_is_no_event(tmp_path):
    """Two blocks at one address, before events of which some were lost."""
    block = model.Block(4096, 512, 512)
    run = model.Run(devices=[model.Device(0, start=(model.Segment(
        4096, 1024, 0, blocks=(block, block)),))], dropped=5, complete_from=9)
    assert "events" not in {one.identity for one in identities.check(run)}
    run.dropped = run.complete_from = 0
    assert "events" in {one.identity for one in identities.check(run)}


def test_totals_are_held_against_events_only_where_none_is_missing():
    maker, run = _to_break()
    at = np.flatnonzero(run.events["kind"] == Kind.TOTALS)
    run.events["address"][at] += 512
    run.dropped = 1
    run.complete_from = int(run.events["time"][at][0])
    assert [one.identity for one in identities.check(run)] == ["totals"]
    run.complete_from += 1
    assert identities.check(run) == []
    assert not gaps.exact(run, 0)
    run.events["kind"][at] = Kind.ALLOC  # where a block lives already
    first = np.flatnonzero(run.events["kind"] == Kind.ALLOC)[0]
    run.events["address"][at] = run.events["address"][first]
    assert "events" not in {one.identity for one in identities.check(run)}
    run.complete_from -= 1
    assert "events" in {one.identity for one in identities.check(run)}


def test_runs_of_many_events_hold_what_all_runs_must():
    run = made_runs.many(30_000)
    assert identities.check(run) == []
    replay = Replay(run, 0)
    assert sum(one.bytes for one in replay.holders()) == (
        replay.allocated.most())
    assert replay.rows["begin"].tolist() == sorted(replay.rows["begin"])
