# SPDX-License-Identifier: Apache-2.0
"""data(): everything that the page shows of one or several runs, as one dict
that JSON can have; what --json writes, too.

Its size has a bound that does not depend on how many events were recorded
(bounds.py). Bytes and ns are ints. Sums are the replay's: categories add up to
what was allocated, the flame graph to the peak, pinned memory to what is
stranded.
"""

import dataclasses
import functools
import math

from stratalloc.telemetry import gaps, progress, replay
from stratalloc.telemetry.analysis import owners
from stratalloc.telemetry.analysis.traffic import traffic
from stratalloc.telemetry.analysis.verdict import verdict
from stratalloc.telemetry.exports.notes import missing, notes
from stratalloc.telemetry.report import histograms
from stratalloc.telemetry.report.addresses import addresses
from stratalloc.telemetry.report.bounds import Bounds, Stacks, name
from stratalloc.telemetry.report.curves import timeline
from stratalloc.telemetry.report.flame import flame
from stratalloc.telemetry.report.layers_table import layers_table
from stratalloc.telemetry.report.moves import moves
from stratalloc.telemetry.report.residency import residency

VERSION = 1
_LEAKS = 60
_SETTINGS = 60


def data(runs, room=1.):
    """The dict.

    Args:
      runs: [(name, Run)], a rank each where there are several.
      room: 0 to 1, how much of what a page shows at most: fitting.py has how
        much a page has room for.
    """
    count = sum(max(1, len(_cards(run))) for _, run in runs)
    bounds = Bounds().shared(count).scaled(room)
    told = [_run(said, run, bounds) for said, run in progress.over(
        runs, "reading runs")]
    return {"version": VERSION, "runs": told,
            "ranks": _ranks(told)}


def _cards(run):
    return [one for one in replay.devices(run) if not (
        run.device(one) and run.device(one).tier)]


def _run(said, run, bounds):
    leaks = functools.cache(functools.partial(owners.leaks, run))
    found = verdict(run, leaks=lambda _, index: leaks(index))
    return {
        "name": name(said),
        "verdict": {"kind": found.kind, "sentence": found.sentence,
                    "numbers": found.numbers,
                    "others": [list(one) for one in found.others]},
        "recording": _short(notes(run)), "missing": missing(run),
        "command": _command(run), "settings": _short(run.settings),
        "devices": [_device(run, index, bounds, leaks(index))
                    for index in _cards(run)]}


def _command(run):
    said = run.about.get("command", "")
    return name(" ".join(map(str, said)) if isinstance(said, (list, tuple))
                else said)


def _short(said):
    """What is no more than a line each."""
    return {name(key): name(value) if isinstance(value, str) else value
            for key, value in list(said.items())[:_SETTINGS]
            if value is None or isinstance(value, (str, int))
            or isinstance(value, float) and math.isfinite(value)}


def _device(run, index, bounds, leaks):
    walked = replay.Replay(run, index)
    stacks = Stacks(run, bounds.stacks)
    last = len(run.events) - 1
    moved = traffic(run, index)
    return {
        "index": index, "name": name(walked.device.name),
        "capacity": walked.device.capacity, "exact": gaps.exact(run, index, walked),
        "anchored": walked.anchored,
        "peak": {
            "event": walked.peak, "time_ns": walked.time(walked.peak),
            **{key: getattr(walked, key).at(walked.peak) for key in (
                "allocated", "requested", "active", "reserved")},
            "parts": dataclasses.asdict(walked.reserved_parts())},
        "most": {key: getattr(walked, key).most() for key in (
            "allocated", "reserved")},
        "stalled_ns": moved.stalled, "left": moved.left,
        "returned": moved.returned,
        "timeline": timeline(walked, bounds),
        "flame": flame(run, walked.holders(), bounds.nodes),
        "residency": {"peak": residency(walked, walked.peak, bounds.rows),
                      "end": residency(walked, last, bounds.rows)},
        "addresses": addresses(walked, walked.peak, bounds, stacks),
        "layers": layers_table(walked, bounds.rows),
        "moves": moves(run, index, bounds),
        "leaks": _leaks(leaks, min(_LEAKS, bounds.rows)),
        "lifetimes": histograms.lifetimes(walked),
        "sizes": histograms.sizes(walked),
        "frames": stacks.frames, "stacks": stacks.stacks,
        "outer": stacks.outer}


def _leaks(found, most):
    return {"steps": found.steps, "at": name(found.at),
            "enough": found.enough,
            "rows": [[name(row.name), row.category, row.bytes, row.count,
                      row.per_step] for row in found.rows[:most]],
            "in_all": len(found.rows)}


def _ranks(told):
    """A row for each device of each run, and how far its peak is from the
    middle one's, in tenths of a percent; None where that is 0 B. Of an even
    number the middle one is the smaller of two, and of two the smaller: so it
    is somebody's, and they are compared with each other."""
    rows = [{"run": run["name"], "device": one["index"],
             "kind": run["verdict"]["kind"], "capacity": one["capacity"],
             "exact": one["exact"], "allocated": one["most"]["allocated"],
             "reserved": one["most"]["reserved"],
             "stranded": one["peak"]["parts"]["stranded"],
             "left": one["left"], "returned": one["returned"],
             "stalled_ns": one["stalled_ns"],
             "duration_ns": run["recording"]["duration_ns"],
             "categories": {key: _at_peak(one, column) for key, column
                            in one["timeline"]["categories"].items()}}
            for run in told for one in run["devices"]]
    if len(rows) < 2:
        return []
    middle = sorted(row["allocated"] for row in rows)[(len(rows) - 1) // 2]
    for row in rows:
        away = row["allocated"] - middle
        # Not rounded up: a tenth is a tenth.
        row["off"] = (int(1000 * away / middle) if middle
                      else None if away else 0)
    return rows


def _at_peak(one, column):
    timeline_ = one["timeline"]
    at = timeline_["allocated"].index(one["peak"]["allocated"])
    return column[at]
