# SPDX-License-Identifier: Apache-2.0
"""Scalars by step, with torchtitan's tags, for TensorBoard and W&B.

A step ends at each mark of the run, and the last one with it; without a mark
the run is one step. Peaks are those within a step.
"""

import numpy as np

from stratalloc.telemetry import model, replay
from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports.tiers import tier_bytes
from stratalloc.telemetry.model import Kind

_GIB = 1 << 30


def scalars(run):
    """[(step, tag, value)], in order of steps. Of several devices tags end in
    "/device N"."""
    found = []
    devices = replay.devices(run)
    for index in devices:
        walked = replay.Replay(run, index)
        suffix = f"/device {index}" if len(devices) > 1 else ""
        before = -1
        for step, end in enumerate(_steps(run)):
            found += [(step, tag + suffix, float(value)) for tag, value in
                      _of_step(run, walked, before, end).items()]
            before = end
    return sorted(found, key=lambda one: one[0])


def _steps(run):
    last = len(run.events) - 1
    marks = np.flatnonzero(run.events["kind"] == Kind.MARK).tolist()
    return marks if marks and marks[-1] == last else [*marks, last]


def _of_step(run, walked, before, end):
    def most(curve):
        inside = curve.after[before + 1:end + 1]
        return max(curve.at(before), int(inside.max(initial=0)))

    active, reserved = most(walked.active), most(walked.reserved)
    capacity = walked.device.capacity
    events = run.events[before + 1:end + 1]
    ours = events[events["device"] == walked.index]
    parts = walked.reserved_parts(end)
    found = {"memory/max_active(GiB)": active / _GIB,
             "memory/max_reserved(GiB)": reserved / _GIB,
             "memory/num_ooms": int((ours["kind"] == Kind.OOM).sum()),
             "memory/num_alloc_retries": walked.device.stats.get(
                 "num_alloc_retries", 0),
             "memory/fragmentation(%)": 100 * (
                 parts.total - parts.allocated - parts.pending)
             / parts.total if parts.total else 0.0}
    if capacity:
        found["memory/max_active(%)"] = 100 * active / capacity
        found["memory/max_reserved(%)"] = 100 * reserved / capacity
    for one in walked.holders(end):
        tag = f"memory/{model.CATEGORIES[one.category]}(GiB)"
        found[tag] = found.get(tag, 0) + one.bytes / _GIB
    found["memory/tier_device(GiB)"] = walked.reserved.at(end) / _GIB
    for tier, size in tier_bytes(run, walked.index, end).items():
        found[f"memory/tier_{tier}(GiB)"] = size / _GIB
    return found


def send(run, add_scalar):
    """add_scalar(tag, value, step) for each: SummaryWriter.add_scalar, or
    `lambda tag, value, step: wandb.log({tag: value}, step=step)`."""
    for step, tag, value in scalars(run):
        add_scalar(tag, value, step)


def write(run, folder):
    """TensorBoard's event files, in a folder.

    Raises:
      MissingPackageError: torch or tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError("TensorBoard", "tensorboard",
                                  error) from None
    with SummaryWriter(str(folder)) as writer:
        send(run, writer.add_scalar)
