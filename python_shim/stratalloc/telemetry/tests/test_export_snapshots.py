# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are written for torch's tools come back as the run they were."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from made_runs import MIB
from exported import RUNS, SOME, bytes_of
from stratalloc.telemetry import identities, import_torch, model
from stratalloc.telemetry.analysis import fit, owners
from stratalloc.telemetry.exports import snapshot
from stratalloc.telemetry.exports.plain_pickler import PlainPickler, Shared
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Replay


@SOME
@RUNS
def test_a_snapshot_comes_back_as_the_run_it_was(seed, steps):
    run, maker = made_runs.make(seed, steps, totals=False, sizes=False)
    for name in ("snapshot.pickle", "snapshot.json"):
        back = import_torch.from_bytes(bytes_of(run, name))
        assert back.source == "stratalloc"
        one, two = Replay(run, 0), Replay(back, 0)
        for curve in ("allocated", "active", "requested", "reserved"):
            assert getattr(one, curve).last() == getattr(two, curve).last()
            assert getattr(one, curve).most() == getattr(two, curve).most()
        assert _named(run, one.holders()) == _named(back, two.holders())
        assert back.device(0).capacity == run.device(0).capacity
        kinds = [int(kind) for kind in snapshot._ACTIONS]
        assert [list(event)[1:3] for event in run.events
                if event["kind"] in kinds] == [
            list(event)[1:3] for event in back.events if event["kind"] in kinds
            and event["device"] == 0][1:]


def _named(run, holders):
    found = {}
    for one in holders:
        key = (run.scopes[one.scope], one.category,
               tuple((site.file, site.line, site.function)
                     for site in run.stack(one.site)))
        found[key] = found.get(key, 0) + one.bytes
    return found


def test_blocks_of_the_start_are_allocated_first_with_their_category():
    maker = made_runs.Maker()
    at = maker.alloc(5000, 2, 1, 1)
    waits = maker.alloc(6000, 3, 3, 2)
    maker.free(waits, complete=False)
    first = len(maker.events)
    maker.alloc(700, 1)
    trace = import_torch.plain_pickle.loads(bytes_of(
        maker.finish(first), "snapshot.pickle"))["device_traces"][0]
    assert [(one["action"], one["addr"], one["category"])
            for one in trace[:4]] == [
        ("snapshot", 0, "unknown"), ("alloc", at, "parameter"),
        ("alloc", waits, "gradient"), ("free_requested", waits, "gradient")]
    assert trace[1]["user_metadata"] == "net.0"
    assert trace[1]["frames"][0]["name"] == "net.0"


def test_what_a_move_made_is_no_allocation_after_a_round_trip():
    maker = made_runs.Maker()
    at = maker.alloc(5000, 2, 1, 1)
    for kind, flags in ((Kind.FREE_REQUESTED, 1), (Kind.FREE_COMPLETED, 1),
                        (Kind.ALLOC, 2)):
        maker.put(kind, at, 5000, 5120, 2, 1, 1, flags=flags)
    run = maker.finish()
    back = import_torch.from_bytes(bytes_of(run, "snapshot.pickle"))
    blocks = back.events["kind"] <= Kind.FREE_COMPLETED
    assert back.events["flags"][blocks].tolist() == [0, 1, 1, 2]
    assert {back.scopes[one] for one in back.events["scope"][blocks]} == {
        "net.0"}
    assert [one.bytes for one in Replay(back, 0).churn()] == [5120]


def test_tiers_are_devices_behind_the_last_one():
    made = import_torch.plain_pickle.loads(bytes_of(made_runs.story(),
                                                  "snapshot.pickle"))
    assert len(made["device_traces"]) == 3
    came = ["segment_alloc", "alloc"]
    left = ["free_requested", "free_completed", "segment_free"]
    host, disk = ([one["action"] for one in made["device_traces"][tier]]
                  for tier in (1, 2))
    assert host == came + left + came + came + left
    assert disk == came + left  # dropped there
    assert [(one["total_size"], one["device"]) for one in made["segments"]
            if one["device"]] == [(2 << 20, 1)]
    assert all(one["addr"] < 1 << 53 for one in made["device_traces"][1])


def test_a_tier_of_a_snapshot_has_its_name_and_is_not_looked_at_unasked():
    maker = made_runs.Maker()
    maker.alloc(MIB, 1, 1)
    for at in range(0, 8 * MIB, 2 * MIB):
        maker.put(Kind.MOVE, 0x7100_0000_0000 + at, 2 * MIB, 900,
                  category=model.move(0, 1))
    back = import_torch.from_bytes(bytes_of(maker.finish(), "snapshot.pickle"))
    assert [(one.index, one.name, one.tier) for one in back.devices] == [
        (0, "card", 0), (1, "host", 1)]
    assert Replay(back, 1).allocated.most() == 8 * MIB  # more than the card's
    assert owners.peak(back).device == 0
    assert fit.fit(back, 1 << 30).device == 0
    assert owners.peak(back, device=1).total == 8 * MIB
    assert not identities.check(back)


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda some: st.lists(some, max_size=4)
    | st.dictionaries(st.text(max_size=3), some, max_size=4)))
def test_our_pickler_writes_what_pickle_reads(value):
    import pickle

    out = io.BytesIO()
    shared = Shared([{"a": 1}])
    PlainPickler(out).dump([value, iter([1, 2]), shared, shared, (0, 7)])
    one, two, three, four, five = pickle.loads(out.getvalue())
    assert one == value and two == [1, 2] and five == (0, 7)
    assert three == [{"a": 1}] and three is four
    assert import_torch.plain_pickle.loads(out.getvalue())[0] == value
