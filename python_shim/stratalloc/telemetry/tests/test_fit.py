# SPDX-License-Identifier: Apache-2.0
"""fit(): verdicts that follow from the model's own sums."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry.analysis.fit import fit
from stratalloc.telemetry.analysis.heap_model import HeapModel, NoRoomError
from stratalloc.telemetry.model import Kind

MIB = 1 << 20
_SOME = settings(max_examples=40, deadline=None)


@_SOME
@given(st.integers(0, 1 << 30), st.integers(1, 200), st.integers(0, 100))
def test_a_verdict_is_never_below_what_lives(seed, steps, first):
    run, maker = made_runs.make(seed, steps, first)
    whole = fit(run, 1 << 40, check=True)
    most = max([one[1] for one in maker.sums[:first][-1:] + maker.sums[first:]],
               default=0)
    assert whole.fits and whole.peak_allocated == most
    assert whole.peak_reserved >= most and whole.peak_reserved % (2 * MIB) == 0
    # What it had is enough, and one byte less than what lives is not.
    assert fit(run, whole.peak_reserved, check=True).fits
    if most:
        failed = fit(run, most - 1, check=True)
        assert not failed.fits and failed.peak_reserved <= most - 1
        assert failed.failure.requested > 0


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


def test_free_handles_of_another_pool_are_taken_before_it_fails():
    heap = HeapModel(8 * MIB)
    small = [heap.allocate(0, MIB // 2) for _ in range(8)]  # two handles
    large = heap.allocate(0, 4 * MIB)
    heap.free(large)
    heap.allocate(1, 4 * MIB)
    assert heap.mapped == 8 * MIB == heap.most
    for one in small[4:]:
        heap.free(one)
    heap.allocate(1, 2 * MIB)
    with pytest.raises(NoRoomError):
        heap.allocate(1, 2 * MIB)
    heap.check()


def test_the_smallest_hole_at_the_lowest_address_is_taken():
    heap = HeapModel(1 << 30)
    blocks = [heap.allocate(0, size * MIB) for size in (4, 2, 3, 2, 2)]
    for i in (0, 2):
        heap.free(blocks[i])
    assert heap.allocate(0, 3 * MIB)[1] == blocks[2][1]
    assert heap.allocate(0, 2 * MIB)[1] == blocks[0][1]


def test_a_block_grows_where_the_fewest_handles_are_new():
    heap = HeapModel(1 << 30)
    low, _, hole, last = (heap.allocate(0, size * MIB) for size in (2, 2, 4, 2))
    heap.free(low)
    heap.free(hole)
    heap.capacity = heap.mapped  # full: the next ones take free handles
    heap.allocate(1, 4 * MIB)  # those of the large hole
    heap.capacity = 1 << 30
    heap.free(last)
    # Two handles into the gap, or one behind the last hole.
    assert heap.allocate(0, 4 * MIB)[1] == last[1]
    assert heap.allocate(0, 4 * MIB)[1] == hole[1]
    heap.check()


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


@pytest.mark.parametrize("wrong", [
    {"policy": "magic"}, {"capacity": -1}, {"capacity": 1.5}, {"handle": 100},
    {"handle": 0}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match="stratalloc.fit"):
        fit(made_runs.story(), **{"capacity": 1 << 30, **wrong})
