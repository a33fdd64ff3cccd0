# SPDX-License-Identifier: Apache-2.0
"""Flame graphs for speedscope: six kinds of profiles in one file.

Of each device: who held what at its peak; the same with what else was reserved
then; what was allocated in all; what grew and what shrank between two moments.
Of each thread: its scopes, as wide as what they allocate and as long as they
took. Weights are bytes of blocks; sampled profiles add up to the run's sums.
"""

import json

import numpy as np

from stratalloc._rendering import tree as _tree
from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.exports import spans
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target, text
from stratalloc.telemetry.model import Kind

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_MOST = 100_000  # stacks or events of a profile that the viewer still likes


def write(run, path, between=None):
    """Writes the file.

    Args:
      between: two moments (indices of events, replay.BEFORE) whose difference
        is told; None: the first and the last mark, or start and end.
    """
    made = build(run, between)
    with target(path) as file:
        file.write(json.dumps(made, separators=(",", ":"),
                              allow_nan=False).encode())


def build(run, between=None):
    """The file's dict."""
    frames = _Frames(run)
    profiles = []
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        card = _card(run, index)
        profiles += [_peak(frames, walked, card),
                     _reserved(frames, walked, card),
                     _churn(frames, walked, card),
                     *_growth(frames, walked, card,
                              between or _between(run))]
    for thread in spans.threads(run):
        found = spans.bounded(run, thread, _MOST)
        name = text(run.threads[thread])
        profiles += [
            _evented(frames, found, f"allocation clock {name}", "bytes",
                     _allocated_by(run, thread)),
            _evented(frames, found, f"modules {name}", "microseconds",
                     np.append(run.events["time"],
                               max(run.duration, _last(run))) / 1000)]
    return {"$schema": SCHEMA, "name": text(str(run.about.get("command",
                                                              run.source))),
            "exporter": "stratalloc", "activeProfileIndex": 0,
            "shared": {"frames": frames.table}, "profiles": profiles,
            "recording": notes(run)}


def _card(run, index):
    device = run.device(index)
    return model.TIERS[device.tier] if device and device.tier else (
        f"cuda:{index}")


class _Frames:
    """The frames of all profiles; one per name, file and line."""

    def __init__(self, run):
        self.run, self.table, self._known = run, [], {}

    def frame(self, name, file="", line=0):
        key = (name, file, line)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.table)
            entry = {"name": text(name)}
            if file:
                entry["file"] = text(file)
            if line:
                entry["line"] = line
            self.table.append(entry)
        return found

    def scope(self, scope):
        """Frames of its parts, the outermost first."""
        parts = _tree.parts(self.run.scopes[scope])
        kind = self.run.classes.get(scope, "")
        return [self.frame(part, kind if i == len(parts) - 1 else "")
                for i, part in enumerate(parts)]

    def site(self, site):
        return [self.frame(one.function or one.file, one.file, one.line)
                for one in reversed(self.run.stack(site))]

    def holder(self, card, one):
        return [self.frame(card), self.frame(model.CATEGORIES[one.category]),
                *self.scope(one.scope), *self.site(one.site)]


def _sampled(name, stacks):
    """Of [(stack, weight)]; zeros are left out, the least many are one."""
    stacks = [one for one in stacks if one[1] > 0]
    return {"type": "sampled", "name": name, "unit": "bytes", "startValue": 0,
            "endValue": sum(weight for _, weight in stacks),
            "samples": [stack for stack, _ in stacks],
            "weights": [weight for _, weight in stacks]}


def _few(frames, card, holders):
    """[(stack, Holder)], the smallest as one stack if there are too many."""
    kept = holders[:_MOST]
    rest = holders[_MOST:]
    found = [(frames.holder(card, one), one)
             for one in progress.over(kept, "writing holders")]
    if rest:
        found.append(([frames.frame(card), frames.frame("<smaller ones>")],
                      replay.Holder(0, 0, 0, sum(one.bytes for one in rest),
                                    sum(one.requested for one in rest),
                                    sum(one.count for one in rest))))
    return found


def _peak(frames, walked, card):
    return _sampled(f"peak holders {card}", [
        (stack, one.bytes) for stack, one in
        _few(frames, card, walked.holders())])


def _reserved(frames, walked, card):
    parts = walked.reserved_parts()
    stacks = []
    for stack, one in _few(frames, card, walked.holders()):
        stacks.append((stack, one.requested))
        stacks.append((stack + [frames.frame("<rounding>")],
                       one.bytes - one.requested))
    for name, size in (("<pending free>", parts.pending),
                       ("<free, releasable>", parts.releasable),
                       ("<free, stranded>", parts.stranded)):
        stacks.append(([frames.frame(card), frames.frame(name)], size))
    return _sampled(f"reserved at peak {card}", stacks)


def _churn(frames, walked, card):
    return _sampled(f"churn {card}", [
        (stack, one.bytes) for stack, one in
        _few(frames, card, walked.churn())])


def _between(run):
    marks = np.flatnonzero(run.events["kind"] == Kind.MARK)
    if len(marks) >= 2:
        return int(marks[0]), int(marks[-1])
    return replay.BEFORE, len(run.events) - 1


def _growth(frames, walked, card, between):
    held = [{(one.scope, one.category, one.site): one
             for one in walked.holders(moment)} for moment in between]
    changes = {}
    for key in held[0].keys() | held[1].keys():
        size = sum(sign * getattr(some.get(key), "bytes", 0)
                   for sign, some in zip((-1, 1), held))
        changes[key] = replay.Holder(*key, size, size, 0)
    for name, sign in (("growth", 1), ("shrinkage", -1)):
        some = sorted((replay.Holder(one.scope, one.category, one.site,
                                     one.bytes * sign, 0, 0)
                       for one in changes.values() if one.bytes * sign > 0),
                      key=lambda one: (-one.bytes, one.scope, one.category,
                                       one.site))
        yield _sampled(f"{name} {card}", [
            (stack, one.bytes) for stack, one in _few(frames, card, some)])


def _allocated_by(run, thread):
    """After each event, and at the end: bytes that the thread allocated."""
    events = run.events
    ours = ((events["kind"] == Kind.ALLOC) & (events["thread"] == thread)
            & (events["flags"] & (model.EVICTED | model.RESTORED) == 0))
    size = np.where(events["aux"] > 0, events["aux"],
                    events["bytes"]).astype("<i8")
    total = np.cumsum(np.where(ours, size, 0))
    return np.append(total, total[-1] if len(total) else 0)


def _evented(frames, found, name, unit, clock):
    """Frames are whole names: parts of them would open and close at once."""
    end = float(clock[-1]) if unit != "bytes" else int(clock[-1])
    events = []
    for event, opens, scope in found:
        frame = frames.frame(frames.run.scopes[scope],
                             frames.run.classes.get(scope, ""))
        events.append({"type": "O" if opens else "C", "frame": frame,
                       "at": clock[event].item()})
    return {"type": "evented", "name": name, "unit": unit, "startValue": 0,
            "endValue": max([end, *(one["at"] for one in events)]),
            "events": events}


def _last(run):
    return int(run.events["time"].max()) if len(run.events) else 0
