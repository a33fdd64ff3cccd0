# SPDX-License-Identifier: Apache-2.0
"""Scalars of a run as TensorBoard reads them back, and as W&B is told them."""

import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator)

import made_runs
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.exports import scalars
from stratalloc.telemetry.model import Kind


@pytest.fixture(params=["story", "hostile", "random", "nothing"])
def run(request):
    if request.param == "random":
        return made_runs.make(4, 300, tiering=True)[0]
    if request.param == "nothing":
        return model.Run()
    return getattr(made_runs, request.param)()


def _walked(maker):
    """[{tag: value}] by step, event by event."""
    gib, found, sizes = 1 << 30, [], {}
    held, tiers, ooms = dict.fromkeys(range(9), 0), {}, 0
    most, now = [0, 0], (0, 0, 0, 0)
    for i, (event, now) in enumerate(zip(maker.events, maker.sums)):
        _, address, size, block, *_, kind, category, _, _ = event
        most = [max(most[0], now[1]), max(most[1], now[3])]
        ooms += kind == Kind.OOM
        if kind == Kind.ALLOC:
            sizes[address] = block, category
            held[category] += block
        elif kind == Kind.FREE_REQUESTED:
            block, category = sizes.pop(address)
            held[category] -= block
        elif kind == Kind.RELABEL and address in sizes:
            block, old = sizes[address]
            sizes[address] = block, category
            held[old] -= block
            held[category] += block
        elif kind == Kind.MOVE:
            for tier, sign in zip(model.ends(category), (-1, 1)):
                tiers[tier] = tiers.get(tier, 0) + sign * size
        elif kind == Kind.DROPPED:
            tiers[category] = tiers.get(category, 0) - size
        if kind != Kind.MARK and i < len(maker.events) - 1:
            continue
        found.append({
            "memory/max_active(GiB)": most[0] / gib,
            "memory/max_reserved(GiB)": most[1] / gib,
            "memory/max_active(%)": 100 * most[0] / (1 << 34),
            "memory/max_reserved(%)": 100 * most[1] / (1 << 34),
            "memory/num_ooms": ooms,
            "memory/fragmentation(%)": 100 * (now[3] - now[1]) / now[3]
            if now[3] else 0, "memory/tier_device(GiB)": now[3] / gib,
            **{f"memory/{model.CATEGORIES[one]}(GiB)": size / gib
               for one, size in held.items() if size},
            **{f"memory/tier_{model.TIERS[tier]}(GiB)": max(0, size) / gib
               for tier, size in tiers.items() if tier}})
        most, ooms = [now[1], now[3]], 0
    found[-1]["memory/num_alloc_retries"] = 7 - 4  # made_runs.finish()
    return found


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 150))
def test_a_step_is_what_a_slow_walk_of_it_finds(seed, steps):
    run, maker = made_runs.make(seed, steps, tiering=True)
    found = {}
    scalars.log(run, lambda row, step: found.update({step: {
        tag: value for tag, value in row.items()
        if tag.startswith("memory/")}}))
    wanted = _walked(maker) if maker.events else [found[0]]
    assert [found[step] for step in sorted(found)] == [
        pytest.approx(row, rel=1e-9) for row in wanted]


def test_a_thousand_steps_are_walked_once():
    """Not the whole run for each: what a step is told of is looked up."""
    maker = made_runs.Maker()
    for _ in range(1000):
        maker.free(maker.alloc(3000, 1, 5))
        maker.put(Kind.MARK, scope=4)
    run, calls = maker.finish(), []
    walks = [getattr(replay.Replay, name) for name in ("live", "ranges")]
    with pytest.MonkeyPatch.context() as patch:
        for walk in walks:
            patch.setattr(replay.Replay, walk.__name__,
                          lambda *some, walk=walk: calls.append(1) or walk(*some))
        assert len({step for step, *_ in scalars.scalars(run)}) == 1000
    assert len(calls) < 10


def test_tensorboard_reads_every_scalar_back(run, tmp_path):
    """Its values are floats of 32 bits."""
    scalars.write(run, tmp_path / "made" / "here")
    read = EventAccumulator(str(tmp_path / "made" / "here"),
                            size_guidance={"scalars": 0})
    read.Reload()
    told = {}
    for step, tag, value in scalars.scalars(run):
        told.setdefault(tag, []).append((step, pytest.approx(value, rel=1e-6)))
    assert set(read.Tags()["scalars"]) == set(told)
    for tag, values in told.items():
        assert [(one.step, one.value) for one in read.Scalars(tag)] == values


def test_a_step_has_the_time_at_which_it_ended(tmp_path):
    run = made_runs.story()
    scalars.write(run, tmp_path)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    marks = run.events["time"][run.events["kind"] == Kind.MARK]
    ends = [*marks.tolist(), int(run.events["time"][-1])]
    assert [one.wall_time for one in read.Scalars("memory/num_ooms")] == [
        pytest.approx(run.started / 1e9 + end / 1e9, abs=1e-6) for end in ends]


def test_what_is_lacking_and_what_it_cost_is_told_at_the_last_step(tmp_path):
    run = made_runs.devices()
    run.dropped, run.complete_from, run.overhead, run.names_lost = 7, 5, 55, 3
    scalars.write(run, tmp_path)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    steps = max(step for step, _, _ in scalars.scalars(run))
    for name, value in (("dropped_events", 7), ("overhead_ns", 55),
                        ("names_lost", 3), ("complete_from_ns", 5)):
        assert [(one.step, one.value) for one in read.Scalars(
            f"recording/{name}")] == [(steps, value)]


def test_the_file_is_the_users_alone_and_the_same_again(tmp_path):
    for name in ("one", "two"):
        scalars.write(made_runs.story(), tmp_path / name)
    (one,), (two,) = (list((tmp_path / name).iterdir())
                      for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes() and one.name == two.name
    assert stat.S_IMODE(one.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(OSError) as error:
        scalars.write(made_runs.story(), tmp_path / "file")
    assert str(tmp_path / "file") in str(error.value)
    assert os.listdir(tmp_path) == ["file"]


class Wandb:
    """What wandb.log promises: a step's values are merged, and what comes for a
    step that is over is dropped."""

    def __init__(self):
        self.history, self.step = {}, 0

    def log(self, data, step=None, commit=None):
        assert all(isinstance(key, str) and isinstance(value, float)
                   for key, value in data.items())
        assert step >= self.step, "wandb drops it"
        self.step = step
        self.history.setdefault(step, {}).update(data)


def test_wandb_is_told_each_step_once_and_in_order(run):
    made = Wandb()
    calls = []
    scalars.log(run, lambda data, step: (calls.append(step),
                                         made.log(data, step=step)))
    assert calls == sorted(set(calls))
    assert [(step, tag, value) for step, row in made.history.items()
            for tag, value in row.items()] == scalars.scalars(run)
