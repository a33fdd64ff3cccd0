# SPDX-License-Identifier: Apache-2.0
"""Ranges of torch's annotations (record_function) as events of a Run.

Torch writes the start and the end of a range as two entries without a thread:
from 2.5 on in `external_annotations`, 2.4 as `user_defined` events of a device,
or of each device. An end closes the newest open range of its name. Ranges of
several threads may cross, and scopes of a Run's thread nest: crossing ranges go
to further threads of the Run ("annotations 2" and so on).

A range that began before the history has an end alone; one that is still open
when the snapshot is written has a start alone.
"""

import dataclasses
import math

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.errors import SnapshotError
from stratalloc.telemetry.model import Kind

_MOST_LANES = 64  # threads of ranges; further ranges are left out
_BEFORE = -1
_STAGES = ("START", "END")


@dataclasses.dataclass(frozen=True)
class Note:
    """The start or the end of a range: `name` is an index of Run.scopes."""

    time: int  # microseconds
    device: int
    name: int
    stage: str


@dataclasses.dataclass
class _Range:
    """Positions in the list of notes; math.inf: the end is not recorded."""

    begin: int
    end: float = math.inf


def external(notes, scope):
    """[Note] of `external_annotations`; an entry without a stage is none.

    Args:
      scope: function, name -> index of Run.scopes.
    """
    found = []
    for i, note in enumerate(notes):
        if not isinstance(note, dict):
            raise SnapshotError(f"external_annotations[{i}] is no dict")
        device, time = note.get("device", 0), note.get("time_us", 0)
        if not (isinstance(device, int) and 0 <= device < 256
                and isinstance(time, int) and 0 <= time < 1 << 53):
            raise SnapshotError(f"external_annotations[{i}] has no device "
                                "or no time")
        name = scope(note.get("name", ""))
        if note.get("stage") in _STAGES:
            found.append(Note(time, device, name, note["stage"]))
    return found


def stage_of(event):
    """(stage, name) of a `user_defined` event of torch 2.4, or None: its only
    frame has the stage as its function and the name as its file."""
    frames = event.get("frames")
    if event.get("action") != "user_defined" or not (
            isinstance(frames, (list, tuple)) and len(frames) == 1):
        return None
    frame = frames[0]
    if not isinstance(frame, dict) or frame.get("line") != 0 or (
            frame.get("name") not in _STAGES):
        return None
    return frame["name"], frame.get("filename", "")


def by_device(notes):
    """[[Note]]: notes of `user_defined` events, device by device. Torch 2.4
    writes each note to every device, and each device keeps the newest ones:
    what is the end of another device's list is left out."""
    found = []
    for one in sorted(notes, key=len, reverse=True):
        key = [(note.name, note.stage) for note in one]
        if key and not any(key == known[-len(key):] for known, _ in found):
            found.append((key, one))
    return [one for _, one in found]


def events(lists):
    """(events, number of threads, ranges left out) of [[Note]]: an end closes a
    start of its own list. The threads of the events are 1 and up."""
    parts, lanes, left_out = [], [], 0
    for notes in lists:
        notes = sorted(notes, key=lambda one: one.time)
        base = len(lanes)
        rows = {}  # position -> row
        for one in _ranges(notes):
            lane = _lane(lanes, base, one)
            if lane is None:
                left_out += 1
                continue
            for at, kind in ((one.begin, Kind.SCOPE_ENTER),
                             (one.end, Kind.SCOPE_LEAVE)):
                if 0 <= at < len(notes):
                    note = notes[at]
                    rows[at] = (note.time * 1000, 0, 0, 0, note.name, 0, 0,
                                1 + lane, kind, 0, note.device, 0)
        parts.append(np.array([rows[at] for at in sorted(rows)], model.EVENT))
    joined = np.concatenate(parts) if parts else np.zeros(0, model.EVENT)
    return (joined[np.argsort(joined["time"], kind="stable")], len(lanes),
            left_out)


def _ranges(notes):
    """[_Range] in the order of their starts, the outer one first."""
    found, open_ones = [], {}
    for at, note in enumerate(notes):
        mine = open_ones.setdefault(note.name, [])
        if note.stage == "START":
            mine.append(_Range(at))
            found.append(mine[-1])
        elif mine:
            mine.pop().end = at
        else:
            found.append(_Range(_BEFORE, at))
    return sorted(found, key=lambda one: (one.begin, -one.end))


def _lane(lanes, base, one):
    """The first thread on which a range nests; None where there is no room."""
    for i in range(base, len(lanes)):
        ends = lanes[i]
        while ends and ends[-1] < one.begin:
            ends.pop()
        if not ends or ends[-1] >= one.end:
            ends.append(one.end)
            return i
    if len(lanes) == _MOST_LANES:
        return None
    lanes.append([one.end])
    return len(lanes) - 1
