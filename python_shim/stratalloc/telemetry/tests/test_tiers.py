# SPDX-License-Identifier: Apache-2.0
"""fit() with policies: what would leave and come back follows from the run."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis import traffic, uses_model
from stratalloc.telemetry.analysis.fit import fit
from stratalloc.telemetry.analysis.tiers_model import TiersModel
from stratalloc.telemetry.analysis.uses_model import uses
from stratalloc.telemetry.model import Kind

MIB = 1 << 20
_PARAMETER, _GRADIENT, _STATE, _TEMPORARY = map(model.CATEGORIES.index, (
    "parameter", "gradient", "optimizer_state", "temporary"))
_SOME = settings(max_examples=40, deadline=None)


def _layers(rounds, count=4):
    """Layers of 4 MiB that run one after another, again and again."""
    maker = made_runs.Maker([f"net.{i}" for i in range(count)])
    for scope in range(1, count + 1):
        maker.alloc(4 * MIB, scope, _PARAMETER)
    for _ in range(rounds):
        for scope in range(1, count + 1):
            maker.enter(scope)
            maker.free(maker.alloc(512, scope, _TEMPORARY))
            maker.leave()
    return maker.finish()


def test_what_fits_moves_nothing():
    found = fit(_layers(3), 24 * MIB, policy="tiering")
    assert found.fits and found.moves.count == 0
    assert "nothing has to leave" in str(found)
    assert fit(_layers(3), 24 * MIB).moves is None


def test_what_leaves_is_back_before_it_is_used():
    run = _layers(5)
    found = fit(run, 14 * MIB, policy="tiering", bandwidth=1e9)
    moves = found.moves
    assert found.fits and found.peak_allocated <= 14 * MIB
    # Of four layers three have room: one at least comes back in each round.
    assert 5 * 4 * MIB <= moves.restored <= 5 * 4 * 4 * MIB
    assert moves.evicted - moves.restored == 4 * MIB
    # Each was written once, when it was made.
    assert moves.clean == moves.evicted - 4 * 4 * MIB
    assert moves.seconds == (0., (moves.evicted - moves.clean
                                  + moves.restored) / 1e9)
    assert moves.slower[0] == 1. < moves.slower[1]
    told = json.loads(json.dumps(found.to_dict()))["moves"]
    assert told["evicted"] == moves.evicted
    assert "come back" in str(found)


def test_the_layer_used_last_leaves_in_a_cycle():
    """Whoever was not used for longest would leave just before its use."""
    rounds = 20
    found = fit(_layers(rounds), 14 * MIB, policy="oracle").moves
    assert found.restored < rounds * 3 * 4 * MIB
    cycle = [_use(scope) for _ in range(50) for scope in range(4)]
    blocks = [uses_model.Used(4 * MIB, True, 1, _PARAMETER) for _ in range(4)]
    # Time passes between two uses, so that they are no burst.
    blocks.append(uses_model.Used(0, False, 0, _TEMPORARY))
    steps = [(uses_model.ALLOC, i, 0) for i in range(4)]
    for event, step in enumerate(cycle, 1):
        steps += [(*step, event)]
        steps += [(uses_model.ALLOC, 4, -event)] * 20
    tiers = TiersModel(14 * MIB, "tiering")
    tiers.go(uses_model.Uses(blocks, steps))
    assert tiers.restored < 50 * 3 * 4 * MIB


def _use(index):
    return uses_model.USE, index


@pytest.mark.parametrize("policy", ["tiering", "oracle"])
def test_transient_memory_stays(policy):
    maker = made_runs.Maker()
    for _ in range(3):
        maker.alloc(4 * MIB, 1, _TEMPORARY)
    found = fit(maker.finish(), 10 * MIB, policy=policy)
    assert not found.fits and found.moves.count == 0
    assert (found.failure.requested, found.failure.live,
            found.failure.scope) == (4 * MIB, 8 * MIB, "net")


def test_a_step_goes_over_all_that_has_gradients():
    maker = made_runs.Maker(["a", "b", "Optimizer.Adam"])
    for scope in (1, 2):
        maker.alloc(2 * MIB, scope, _PARAMETER)
    maker.alloc(2 * MIB, 1, _GRADIENT)
    maker.alloc(2 * MIB, 1, _STATE)
    maker.enter(3)
    once = len(maker.events)
    maker.leave()
    run = maker.finish()
    written = [index for what, index, _ in _steps(run)
               if what == uses_model.WRITE]
    assert written == [0, 2, 3]  # b is frozen
    run.events = run.events[:once - 1]
    assert uses_model.WRITE not in {what for what, _, _ in _steps(run)}


def test_lists_are_gone_over_again():
    def step(lists):
        maker = made_runs.Maker(["a", "b", "Optimizer.Adam"])
        for scope in (1, 2):
            maker.alloc(2 * MIB, scope, _PARAMETER)
            maker.alloc(2 * MIB, scope, _GRADIENT)
        maker.enter(3)
        made = []
        for _ in range(2):
            made.append(maker.alloc(2 * MIB, 3, _TEMPORARY))
            if not lists:
                maker.free(made.pop())
        for one in made:
            maker.free(one)
        maker.leave()
        return [index for what, index, _ in _steps(maker.finish())
                if what == uses_model.WRITE]

    assert step(lists=False) == [0, 2, 1, 3]
    assert step(lists=True) == [0, 2, 1, 3, 4, 5, 0, 2, 4, 5]


def _steps(run):
    return uses(run, replay.Replay(run, 0)).steps


@_SOME
@given(st.integers(0, 1 << 30), st.integers(1, 200), st.integers(0, 60),
       st.sampled_from(["tiering", "oracle"]))
def test_no_byte_is_lost_between_the_tiers(seed, count, share, policy):
    run, _ = made_runs.make(seed, count, 0)
    walked = replay.Replay(run, 0)
    most = int(walked.active.most())
    used = uses(run, walked)
    tiers = TiersModel(most * (40 + share) // 100, policy)
    tiers.go(used)
    away = sum(one.size for one in tiers._blocks.values() if one.away)
    assert 0 <= tiers.clean <= tiers.evicted
    assert tiers.evicted >= tiers.restored + away
    assert tiers.most <= most * (40 + share) // 100
    if tiers.refused is None:
        assert tiers.moves == 0 or tiers.evicted > 0
    # With room for all nothing moves, and as much is there as there was.
    tiers = TiersModel(2 * most + 4 * MIB, policy)
    tiers.go(used)
    assert (tiers.moves, tiers.refused, tiers.most) == (0, None, most)


def _moving(run, *moves):
    """The run and moves after it: (source, target, bytes, begin, end)."""
    began = int(run.events["time"][-1])
    more = np.repeat(run.events[-1:], len(moves))
    for one, (source, target, size, begin, end) in zip(more, moves):
        one["kind"], one["category"] = Kind.MOVE, model.move(source, target)
        one["time"], one["bytes"], one["aux"] = began + end, size, end - begin
    run.events = np.concatenate([run.events, more])
    return run


def test_bandwidth_of_a_recording_counts_overlapping_moves_once():
    # A batch of three handles, 8 bytes per ns out and then 2 per ns back.
    run = _moving(_layers(3), *(
        (0, 1, 8 * MIB, 0, 3 * MIB) for _ in range(3)), *(
        (1, 0, 2 * MIB, 3 * MIB, 6 * MIB) for _ in range(3)))
    found = fit(run, 14 * MIB, policy="tiering")
    moves = found.moves
    assert moves.bandwidth == (8e9, 2e9)
    assert moves.seconds[1] == ((moves.evicted - moves.clean) / 8e9
                                + moves.restored / 2e9)
    assert "at 8 GB/s out and 2 GB/s back" in str(found)
    assert fit(run, 14 * MIB, policy="tiering",
               bandwidth=1e9).moves.bandwidth == (1e9, 1e9)


def test_bandwidth_without_a_move_of_that_direction_is_the_default():
    run = _moving(_layers(3), (0, 1, 8 * MIB, 0, MIB), (1, 0, MIB, 7, 7))
    assert fit(run, 14 * MIB, policy="tiering"
               ).moves.bandwidth == (8e9, 24e9)
    assert fit(_layers(3), 14 * MIB, policy="tiering"
               ).moves.bandwidth == (24e9, 24e9)


def test_bandwidth_of_two_devices_is_that_of_each_bus():
    run = _moving(_layers(3), (0, 1, 8 * MIB, 0, MIB), (0, 1, 2 * MIB, 0, MIB))
    run.events["device"][-1] = 1
    assert traffic.rates(run, 0)[0] == 8e9
    assert traffic.rates(run)[0] == 5e9


@pytest.mark.parametrize("bandwidth", [0, -1, float("inf"), float("nan")])
def test_a_bandwidth_that_cannot_be(bandwidth):
    with pytest.raises(ValueError, match="bandwidth"):
        fit(_layers(1), 1 << 30, policy="tiering", bandwidth=bandwidth)
