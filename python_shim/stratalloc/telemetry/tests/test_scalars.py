# SPDX-License-Identifier: Apache-2.0
"""Scalars of a run as TensorBoard reads them back, and as W&B is told them."""

import os
import stat

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator)

import made_runs
from stratalloc.telemetry import model
from stratalloc.telemetry.exports import scalars
from stratalloc.telemetry.model import Kind


@pytest.fixture(params=["story", "hostile", "random", "nothing"])
def run(request):
    if request.param == "random":
        return made_runs.make(4, 300)[0]
    if request.param == "nothing":
        return model.Run()
    return getattr(made_runs, request.param)()


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
