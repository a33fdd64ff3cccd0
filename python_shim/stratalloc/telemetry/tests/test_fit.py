# SPDX-License-Identifier: Apache-2.0
"""fit(): verdicts that follow from the model's own sums."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import model
from stratalloc.telemetry.analysis.fit import POLICIES, fit
from stratalloc.telemetry.analysis.handles_model import Handles
from stratalloc.telemetry.analysis.heap_model import HeapModel, NoRoomError
from stratalloc.telemetry.model import Kind

MIB = 1 << 20
_SOME = settings(max_examples=40, deadline=None)


def _verdicts(seed, steps, first):
    run, maker = made_runs.make(seed, steps, first)
    whole = fit(run, 1 << 40, check=True)
    sums = maker.sums[:first][-1:] + maker.sums[first:]
    most = max((one[0] for one in sums), default=0)
    active = max((one[1] for one in sums), default=0)
    # What was before the first event that is left is not known.
    assert whole.fits is (None if first else True)
    assert bool(whole.missing) == bool(first) and whole.peak_allocated == most
    assert whole.peak_reserved >= active
    assert whole.peak_reserved % (2 * MIB) == 0
    if most:
        failed = fit(run, most - 1, check=True)
        assert not failed.fits and failed.peak_reserved <= most - 1
        assert failed.failure.requested > 0


@_SOME
@given(st.integers(0, 1 << 30), st.integers(1, 60), st.integers(0, 30))
def test_a_verdict_is_never_below_what_lives(seed, steps, first):
    _verdicts(seed, steps, first)


@pytest.mark.long
@_SOME
@given(st.integers(0, 1 << 30), st.integers(60, 200), st.integers(0, 100))
def test_a_verdict_of_a_longer_run_is_never_below_what_lives(seed, steps,
                                                             first):
    _verdicts(seed, steps, first)


@_SOME
@given(st.integers(0, 1 << 30))
def test_of_blocks_of_whole_handles_every_byte_is_used(seed):
    import random

    chance, maker = random.Random(seed), made_runs.Maker()
    for _ in range(60):
        if chance.random() < .6 or not maker.living:
            maker.alloc(2 * MIB * chance.randrange(1, 5))
        else:
            maker.free(chance.choice(sorted(maker.living)))
    run = maker.finish()
    most = max(one[0] for one in maker.sums)
    assert fit(run, most, check=True).fits
    assert not fit(run, most - 2 * MIB, check=True).fits


_STREAMS = [(stream, (0, 0)) for stream in range(3)]


def test_free_handles_of_another_pool_are_taken_before_it_fails():
    heap = HeapModel(8 * MIB)
    small = [heap.allocate(_STREAMS[0], MIB // 2) for _ in range(8)]
    large = heap.allocate(_STREAMS[0], 4 * MIB)
    heap.free(large)
    heap.allocate(_STREAMS[1], 4 * MIB)
    assert heap.mapped == 8 * MIB == heap.most
    for one in small[4:]:
        heap.free(one)
    heap.allocate(_STREAMS[1], 2 * MIB)
    with pytest.raises(NoRoomError):
        heap.allocate(_STREAMS[1], 2 * MIB)
    heap.check()


def test_memory_of_a_private_pool_in_use_stays_with_it():
    heap = HeapModel(8 * MIB)
    heap.kept.add((1, 0))
    heap.free(heap.allocate((0, (1, 0)), 6 * MIB))
    with pytest.raises(NoRoomError):
        heap.allocate(_STREAMS[0], 4 * MIB)
    heap.kept.clear()
    heap.allocate(_STREAMS[0], 4 * MIB)
    heap.check()


def test_the_smallest_hole_at_the_lowest_address_is_taken():
    heap = HeapModel(1 << 30)
    blocks = [heap.allocate(_STREAMS[0], size * MIB)
              for size in (4, 2, 3, 2, 2)]
    for i in (2, 0):
        heap.free(blocks[i], at_once=False)
    assert heap.allocate(_STREAMS[0], 3 * MIB).address == blocks[2].address
    assert heap.allocate(_STREAMS[0], 2 * MIB).address == blocks[0].address


def test_a_block_freed_last_is_taken_for_its_exact_size():
    heap = HeapModel(1 << 30)
    first, _, second, _ = (heap.allocate(_STREAMS[0], 2 * MIB)
                           for _ in range(4))
    heap.free(first)
    heap.free(second)
    assert heap.allocate(_STREAMS[0], 2 * MIB) is second
    assert heap.allocate(_STREAMS[0], 2 * MIB) is first


def test_a_place_gets_back_the_memory_it_had():
    handles = Handles(2)
    assert handles.map([0, 1])
    first = handles.kept[0]
    for place in (0, 1):
        handles.give_up(place, keeps=True)
    assert handles.map([0]) and handles.kept[0] is first
    assert handles.map([7]) and handles.kept[1].at == 7
    assert not handles.map([8])
    handles.check()


def test_who_is_refused_waits_for_streams():
    heap = HeapModel(4 * MIB)
    pending = [heap.allocate(_STREAMS[0], 4 * MIB)]

    def wait():
        for one in pending:
            heap.free(one, at_once=False)
        return bool(pending) and not pending.clear()

    with pytest.raises(NoRoomError):
        heap.allocate(_STREAMS[1], 4 * MIB)
    heap.allocate(_STREAMS[1], 4 * MIB, wait)
    with pytest.raises(NoRoomError):
        heap.allocate(_STREAMS[1], 4 * MIB, wait)
    heap.check()


def test_a_block_grows_where_the_fewest_handles_are_new():
    heap = HeapModel(1 << 30)
    low, _, hole, last = (heap.allocate(_STREAMS[0], size * MIB)
                          for size in (2, 2, 4, 2))
    heap.free(low)
    heap.free(hole)
    heap.allocate(_STREAMS[1], 6 * MIB)  # takes their memory
    heap.free(last)
    # Two handles into the gap before it, or one behind the last hole.
    assert heap.allocate(_STREAMS[0], 4 * MIB).address == last.address
    assert heap.allocate(_STREAMS[0], 4 * MIB).address == hole.address
    heap.check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("asked", [1 << 49, 1 << 61])
def test_what_no_card_holds_is_refused_before_it_is_looked_for(policy, asked):
    """Of a damaged file; a place for each of its handles would take for ever."""
    run = made_runs.story()
    (first, *_) = (run.events["kind"] == Kind.ALLOC).nonzero()[0]
    run.events["bytes"][first] = asked
    found = fit(run, 64 * MIB, policy=policy)
    assert not found.fits and found.failure.requested == asked


def test_the_failure_names_who_asked():
    maker = made_runs.Maker()
    maker.alloc(3 * MIB, 1)
    maker.alloc(6 * MIB, 3, 5, 2)
    found = fit(maker.finish(), 8 * MIB)
    assert not found
    assert (found.failure.scope, found.failure.site) == ("net.0.mlp",
                                                         "/p/net.py:20")
    assert (found.failure.requested, found.failure.live) == (6 * MIB, 3 * MIB)
    assert "does not fit 8 MiB" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["failure"]["event"] == 3


def test_what_was_evicted_there_stays_here():
    maker = made_runs.Maker()
    at = maker.alloc(6 * MIB, 1)
    for kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED):
        maker.put(kind, at, 6 * MIB, 6 * MIB, flags=1)
    maker.put(Kind.ALLOC, at + 2 * MIB, 4 * MIB, 4 * MIB, flags=1)
    middle = len(maker.events)
    for kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED):
        maker.put(kind, at + 2 * MIB, 4 * MIB, 4 * MIB)
    maker.living.clear()
    maker.alloc(6 * MIB, 2)
    run = maker.finish()
    assert fit(run, 6 * MIB, check=True).fits
    run.events = run.events[[*range(middle), *range(middle + 2,
                                                    len(run.events))]]
    run.events["address"][-1] += 64 * MIB
    assert not fit(run, 10 * MIB).fits


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_graph_s_pool_has_cached_is_nobody_else_s(ended):
    maker = made_runs.Maker()
    maker.run.pools.append(model.Pool(0, 7, (1, 0)))
    at = maker.alloc(6 * MIB, 1)
    maker.free(at)
    for one in maker.events:  # of the graph
        maker.events[maker.events.index(one)] = (*one[:6], 2, *one[7:])
    if ended:
        maker.put(Kind.SEGMENT_UNMAP, at, 6 * MIB, pool=2)
    maker.alloc(4 * MIB, 1)
    assert fit(maker.finish(), 8 * MIB, check=True).fits == ended


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_refused_at_the_start_is_said_in_words(policy):
    maker = made_runs.Maker()
    maker.alloc(6 * MIB, 1, site=0)
    before = maker.snapshot()
    maker.events.clear()
    maker.sums.clear()
    maker.alloc(512, 2)
    run = maker.finish()
    run.devices[0].start = before
    found = fit(run, 2 * MIB, policy=policy)
    assert not found.fits and found.failure.event == -1
    said = found.text()
    assert "at the start, before the first event: 6 MiB" in said
    assert ("6 MiB for net while" in said) == (policy == "none")
    assert "-1" not in said


@pytest.mark.parametrize("wrong", [
    {"policy": "magic"}, {"capacity": -1}, {"capacity": 1.5}, {"handle": 100},
    {"handle": 0}, {"bandwidth": float("inf")}, {"bandwidth": 1e-300}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="stratalloc.fit"):
        fit(made_runs.story(), **{"capacity": 1 << 30, **wrong})


def test_what_a_recorded_run_was_refused_is_asked_for_again():
    maker = made_runs.Maker()
    maker.alloc(6 * MIB, 1)
    maker.put(Kind.OOM, 0, 4 * MIB, scope=2)
    maker.alloc(512, 1)
    run = maker.finish()
    found = fit(run, 8 * MIB)
    assert (found.failure.event, found.failure.requested,
            found.failure.scope) == (2, 4 * MIB, "net.0")
    found = fit(run, 16 * MIB)
    assert found.fits and [one.requested for one in found.granted] == [4 * MIB]
    assert "was refused memory: event 2" in str(found)
    assert found.to_dict()["granted"][0]["scope"] == "net.0"
    assert fit(run, 3 * MIB, policy="tiering").failure
    assert not fit(made_runs.story(), 1 << 34).fits  # 2^40 bytes
