# SPDX-License-Identifier: Apache-2.0
"""Scalars by step, with torchtitan's tags, for TensorBoard and W&B.

A step ends at each mark of the run, and the last one with it; without a mark
the run is one step. Peaks are those within a step. What the recording lacks and
what it cost is known at the end: tags recording/... of the last step.
"""

import itertools
import os

import numpy as np

from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports import samples, tiers
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target
from stratalloc.telemetry.model import Kind

_GIB = 1 << 30
_OF_THE_RUN = ("dropped_events", "complete_from_ns", "names_lost",
               "stacks_lost", "overhead_ns")


def scalars(run):
    """[(step, tag, value)], in order of steps. Of several devices tags of
    memory end in "/device N"."""
    found = []
    devices = replay.devices(run)
    for index in devices:
        told = _Device(run, index)
        suffix = f"/device {index}" if len(devices) > 1 else ""
        before = -1
        for step, end in enumerate(progress.over(_steps(run), "walking steps")):
            found += [(step, tag + suffix, float(value)) for tag, value in
                      told.step(before, end).items()]
            before = end
        retries = told.walked.device.since_start("num_alloc_retries")
        if retries is not None:  # of the run: no event says when
            found.append((step, "memory/num_alloc_retries" + suffix,
                          float(retries)))
    last = len(_steps(run)) - 1
    found += [(last, f"recording/{name}", float(value))
              for name, value in notes(run).items() if name in _OF_THE_RUN]
    return sorted(found, key=lambda one: one[0])


def _steps(run):
    last = len(run.events) - 1
    marks = np.flatnonzero(run.events["kind"] == Kind.MARK).tolist()
    return marks if marks and marks[-1] == last else [*marks, last]


class _Device:
    """Columns of a device, made once: a step's work is that of its events."""

    def __init__(self, run, index):
        self.walked = replay.Replay(run, index)
        self.categories = samples.by_category(self.walked)
        self.tiers = tiers.Tiers(run, index)
        self.ooms = np.cumsum((run.events["kind"] == Kind.OOM)
                              & (run.events["device"] == index))

    def step(self, before, end):
        """{tag: value} of what lies behind the event `before`, to `end`."""
        def most(curve):
            inside = curve.after[before + 1:end + 1]
            return max(curve.at(before), int(inside.max(initial=0)))

        def ooms(moment):
            return int(self.ooms[moment]) if moment >= 0 else 0

        walked = self.walked
        active, reserved = most(walked.active), most(walked.reserved)
        held = walked.active.at(end)
        total = max(walked.reserved.at(end), held)
        found = {"memory/max_active(GiB)": active / _GIB,
                 "memory/max_reserved(GiB)": reserved / _GIB,
                 "memory/num_ooms": ooms(end) - ooms(before),
                 "memory/fragmentation(%)": 100 * (total - held) / total
                 if total else 0.0}
        capacity = walked.device.capacity
        if capacity:
            found["memory/max_active(%)"] = 100 * active / capacity
            found["memory/max_reserved(%)"] = 100 * reserved / capacity
        for category, curve in self.categories.items():
            if curve.at(end):
                found[f"memory/{model.CATEGORIES[category]}(GiB)"] = (
                    curve.at(end) / _GIB)
        found["memory/tier_device(GiB)"] = walked.reserved.at(end) / _GIB
        for tier, size in self.tiers.at(end).items():
            found[f"memory/tier_{tier}(GiB)"] = size / _GIB
        return found


def send(run, add_scalar):
    """add_scalar(tag, value, step) for each: SummaryWriter.add_scalar of a
    program's own writer."""
    for step, tag, value in scalars(run):
        add_scalar(tag, value, step)


def log(run, log_step):
    """log_step({tag: value}, step=step) for each step, in order: wandb.log."""
    for step, rows in itertools.groupby(scalars(run), lambda one: one[0]):
        log_step({tag: value for _, tag, value in rows}, step=step)


def write(run, folder):
    """TensorBoard's event file, with a name of its own in a folder that is made
    if it is not there. Raises as write_file()."""
    _tensorboard()  # before a folder is made for nothing
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_file(run, os.path.join(
        folder, f"events.out.tfevents.{run.started // 10**9}.stratalloc"))


def write_file(run, path):
    """The event file alone. A step has the time at which it ended.

    Raises:
      MissingPackageError: tensorboard is not installed.
      OSError: the folder or the file cannot be made.
    """
    Event, Summary, RecordWriter = _tensorboard()
    began = run.started / 1e9
    ends = [began + (int(run.events["time"][end]) / 1e9 if end >= 0 else 0)
            for end in _steps(run)]
    with target(path) as file:
        records = RecordWriter(file)
        records.write(Event(wall_time=began, file_version="brain.Event:2")
                      .SerializeToString())

        def add(tag, value, step):
            records.write(Event(
                wall_time=ends[step], step=step, summary=Summary(value=[
                    Summary.Value(tag=tag, simple_value=value)]))
                .SerializeToString())

        send(run, add)


def _tensorboard():
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise MissingPackageError("TensorBoard", "tensorboard",
                                  error) from None
    return Event, Summary, RecordWriter
