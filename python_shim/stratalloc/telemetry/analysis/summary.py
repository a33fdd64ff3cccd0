# SPDX-License-Identifier: Apache-2.0
"""summary(): what a run was, on a page."""

import numpy as np

from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result
from stratalloc._rendering.table import Row, Table, counted, refused
from stratalloc.sizes import format_size
from stratalloc.telemetry import gaps, identities, model, replay
from stratalloc.telemetry.analysis.curves import Curves
from stratalloc.telemetry.exports import tiers
from stratalloc.telemetry.exports.notes import missing, notes
from stratalloc.telemetry.model import Kind


class Summary(Result):
    """Attributes are the keys of to_dict(): recording, devices, scopes, sites,
    violations."""

    def __init__(self, run):
        self._run = run
        self.recording, self._missing = notes(run), missing(run)
        marks = run.events["scope"][run.events["kind"] == Kind.MARK]
        self.scopes = len(run.scopes) - 1 - len(np.unique(marks[marks > 0]))
        self.sites = len(run.sites) - 1
        self.devices = [_device(run, index) for index in replay.devices(run)]
        self.violations = [str(one) for one in identities.check(run)]

    def to_dict(self):
        return {key: value for key, value in vars(self).items()
                if not key.startswith("_")}

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        said = self.recording
        parts = [f"{counted(said['events'], 'event')} of "
                 f"{said['duration_ns'] / 1e9:.3f} s, "
                 f"{counted(self.scopes, 'scope')}, "
                 f"{counted(self.sites, 'site')}, level {said['level']}, "
                 f"from {said['source']}"]
        if self._missing:
            parts.append(self._missing)
        if "names_lost" in said:
            parts.append(f"{said['names_lost']} names had no room: what they "
                         "belong to has a number")
        if "stacks_lost" in said:
            parts.append(f"of {said['stacks_lost']} allocations the line alone "
                         "is known: no more stacks were told apart")
        for one in self.devices:
            parts += [f"device {one['device']} {one['name']}".rstrip(),
                      Curves(self._run, one["device"]), _table(one),
                      *_told(one)]
        parts += [f"does not hold: {one}" for one in self.violations]
        return Page(parts, depth, all, **how)


def summary(run):
    return Summary(run)


def _device(run, index):
    walked = replay.Replay(run, index)
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    parts = walked.reserved_parts()
    moves = events[kinds == Kind.MOVE]
    moved = {}
    for category in np.unique(moves["category"]).tolist():
        source, to = (model.TIERS[one] for one in model.ends(category))
        moved[f"{source}_to_{to}"] = int(
            moves["bytes"][moves["category"] == category].sum())
    return {
        "device": index, "name": walked.device.name,
        "capacity": walked.device.capacity, "exact": gaps.exact(run, index, walked),
        **{name: {"start": curve.base, "peak": curve.most(),
                  "end": curve.last()} for name, curve in (
            (name, getattr(walked, name)) for name in (
                "allocated", "requested", "active", "reserved"))},
        "peak_event": walked.peak, "peak_time_ns": walked.time(walked.peak),
        "at_peak": dict(vars(parts)),
        "allocations": int(((kinds == Kind.ALLOC) & (
            events["flags"] & (model.EVICTED | model.RESTORED) == 0)).sum()),
        "allocated_in_all": sum(one.bytes for one in walked.churn()),
        "ooms": int((kinds == Kind.OOM).sum()), "moved": moved,
        "below": tiers.Tiers(run, index).at(len(run.events) - 1),
        "stalls": int((kinds == Kind.STALL).sum()),
        "stall_ns": int(events["aux"][kinds == Kind.STALL].sum())}


def _told(one):
    """Sentences of what a table of memory does not show."""
    if one["ooms"]:
        yield f"{refused(one['ooms'])}: out of memory"
    if one["moved"]:
        yield "moved: " + ", ".join(
            f"{format_size(size)} {name.replace('_', ' ')}"
            for name, size in one["moved"].items())
    below = {tier: size for tier, size in one["below"].items() if size}
    if below:
        yield "at the end below the device: " + ", ".join(
            f"{format_size(size)} on {tier}" for tier, size in below.items())
    if one["stalls"]:
        yield (f"{counted(one['stalls'], 'time')} a thread waited for memory, "
               f"{one['stall_ns'] / 1e9:.3f} thread-s in all")


def _table(one):
    rows = [Row(name, tuple(format_size(one[name][when])
                            for when in ("start", "peak", "end")))
            for name in ("allocated", "requested", "active", "reserved")]
    rows += [Row(f"at the peak: {name}", ("", format_size(
        one["at_peak"][name]), "")) for name in (
            "rounding", "pending", "releasable", "stranded")]
    return Table(("", "start", "peak", "end"), rows)
