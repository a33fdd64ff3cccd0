# SPDX-License-Identifier: Apache-2.0
"""PyTorch's memory snapshot, as pickle (protocol 4) or JSON: torch's own tools
and pytorch.org/memory_viz open it.

Scopes are the innermost frame of blocks and events, and their `user_metadata`
(the viewer hides some frames by name); categories are on every event. What was
alive at the start is allocated by events of ours before all others, since the
viewer colours only what it saw allocated, and one event of category "unknown"
is always there, since it fails on a file without one. Memory on the host and
on disk is that of two more devices. The label of what an
eviction or a restore made is "evicted" or "restored", as in the allocator's own
history. The key "stratalloc" is ours.
"""

import json

import numpy as np

from stratalloc.telemetry import gaps, model, progress, replay
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.plain_pickler import PlainPickler, Shared
from stratalloc.telemetry.exports.target import target, text, write_rows
from stratalloc.telemetry.model import Kind

_ACTIONS = {Kind.ALLOC: "alloc", Kind.FREE_REQUESTED: "free_requested",
            Kind.FREE_COMPLETED: "free_completed",
            Kind.SEGMENT_ALLOC: "segment_alloc",
            Kind.SEGMENT_FREE: "segment_free", Kind.SEGMENT_MAP: "segment_map",
            Kind.SEGMENT_UNMAP: "segment_unmap", Kind.SNAPSHOT: "snapshot",
            Kind.OOM: "oom", Kind.MARK: "user_defined"}


def write(run, path):
    """As a pickle."""
    with target(path) as file:
        PlainPickler(file).dump(build(run))


def write_json(run, path):
    """As JSON; the newer viewer and import_torch read it, torch does not."""
    with target(path) as file:
        _write_json(file, build(run))


def build(run):
    """The snapshot; `device_traces` has iterators in place of lists."""
    frames = _Frames(run)
    walked = {index: replay.Replay(run, index)
              for index in replay.devices(run)}
    count = max(walked, default=0) + 1
    tiers = [_Tier(run, tier, count + tier - 1, frames)
             for tier in range(1, len(model.TIERS))]
    segments, traces = [], []
    for index in range(count):
        segments += _segments(run, walked.get(index), frames)
        traces.append(_trace(run, index, walked.get(index), frames))
    for tier in tiers:
        segments += tier.segments()
        traces.append(tier.trace())
    settings = {str(key): value if isinstance(value, (int, float))
                else text(str(value)) for key, value in run.settings.items()}
    return {
        "segments": segments, "device_traces": traces,
        "allocator_settings": {
            **settings, "trace_alloc_max_entries": len(run.events),
            "trace_alloc_overflowed": any(
                gap.kind != "torn" for one in walked.values()
                for gap in gaps.gaps(run, one.index, one))},
        "external_annotations": _annotations(run),
        "stratalloc": {
            "version": 1, "recording": notes(run),
            "devices": [
                *({"index": one.index, "name": text(one.name),
                   "capacity": int(one.capacity), "tier": one.tier}
                  for one in run.devices),
                *({"index": one.index, "name": model.TIERS[one.tier],
                   "capacity": 0, "tier": one.tier} for one in tiers)]}}


# What the label says of an event that a move between tiers made.
MOVES = {model.EVICTED: "evicted", model.RESTORED: "restored"}
_MOVED = model.EVICTED | model.RESTORED


class _Frames:
    """Lists of frames by (scope, site), each made once."""

    def __init__(self, run):
        self.run, self._known, self._sites = run, {}, {}
        self.scopes = [text(name) for name in run.scopes]
        self.none = Shared()

    def of(self, scope, site):
        found = self._known.get((scope, site))
        if found is None:
            parts = [] if not scope else [{
                "filename": _line(self.run.classes.get(scope, "")), "line": 0,
                "name": _line(self.run.scopes[scope])}]
            parts += [{"filename": _line(one.file), "line": int(one.line),
                       "name": _line(one.function)}
                      for one in self.run.stack(site)]
            found = self._known[scope, site] = (Shared(parts) if parts
                                                else self.none)
        return found

    def label(self, scope):
        return self.scopes[scope] if scope else ""


def _line(name):
    """As one line: torch's flame graphs have one for each stack."""
    return text(name).replace("\n", "\\n").replace("\r", "\\r")


def _trace(run, index, walked, frames):
    """Events of one device."""
    start = run.started // 1000
    yield _event("snapshot", 0, 0, model.Pool(index, 0), start, frames.none,
                 "", "unknown")
    if walked is None:
        return
    for i in walked.live(replay.BEFORE, "done").tolist():
        row = walked.rows[i]
        yield from _begun(row, run, start, frames)
    events = run.events
    ours = np.isin(events["kind"], [int(kind) for kind in _ACTIONS]) & (
        events["device"] == index)
    columns = events[ours]
    rows = zip(*(columns[name].tolist() for name in (
        "time", "address", "bytes", "scope", "site", "pool", "kind",
        "category", "flags")))
    for (time, address, size, scope, site, pool, kind, category,
         flags) in progress.over(rows, "writing events", len(columns)):
        event = _event(_ACTIONS[kind], address, size, run.pools[pool],
                       start + time // 1000, frames.of(scope, site),
                       MOVES.get(flags & _MOVED) or frames.label(scope),
                       model.CATEGORIES[category])
        if kind == Kind.OOM:
            event["device_free"] = event.pop("addr")
        yield event


def _begun(row, run, start, frames):
    """Events of a block that was there before all others."""
    scope, site = int(row["scope"]), int(row["site"])
    actions = ["alloc"]
    if row["asked"] == replay.BEFORE:
        actions.append("free_requested")
    for action in actions:
        yield _event(action, int(row["address"]), int(row["requested"]),
                     run.pools[int(row["pool"])], start,
                     frames.of(scope, site), frames.label(scope),
                     model.CATEGORIES[int(row["category"])])


def _event(action, address, size, pool, time, frames, label, category):
    return {"action": action, "addr": address, "size": size,
            "stream": pool.stream, "time_us": time, "frames": frames,
            "category": category, "user_metadata": label,
            "pool_id": pool.owner}


def _segments(run, walked, frames):
    """Dicts of the end's segments: as recorded, or by the events."""
    if walked is None:
        return
    found = walked.device.end
    if found is None:
        found = replay.segments_at(walked, len(run.events) - 1)
    labels = _labels(walked)
    for one in found:
        pool = run.pools[one.pool]
        blocks = [block for block in one.blocks if block.tier == 0]
        live = [block for block in blocks if block.state != model.FREE]
        yield {
            "device": walked.index, "address": one.address,
            "total_size": one.size,
            "allocated_size": sum(block.size for block in live
                                  if block.state == model.ACTIVE),
            "active_size": sum(block.size for block in live),
            "requested_size": sum(block.requested for block in live),
            "stream": pool.stream,
            "segment_type": "small" if one.small else "large",
            "segment_pool_id": pool.owner, "is_expandable": one.expandable,
            "frames": frames.none,
            "blocks": [_block(block, labels.get(block.address), frames)
                       for block in blocks]}


def _labels(walked):
    """address -> row, of what is there at the end."""
    last = len(walked.run.events) - 1
    which = walked.live(last, "done")
    return dict(zip(walked.rows["address"][which].tolist(), zip(*(
        walked.rows[name][which].tolist()
        for name in ("scope", "category", "site")))))


def _block(block, label, frames):
    found = {"address": block.address, "size": block.size,
             "requested_size": block.requested, "state": block.state,
             "frames": frames.none}
    if block.state != model.FREE:
        scope, category, site = label or (block.scope, block.category,
                                          block.site)
        scope, site = block.scope or scope, block.site or site
        found["frames"] = frames.of(scope, site)
        found["user_metadata"] = frames.label(scope)
        found["category"] = model.CATEGORIES[block.category or category]
    return found


def _annotations(run):
    events = run.events
    ours = events[(events["kind"] == Kind.SCOPE_ENTER)
                  | (events["kind"] == Kind.SCOPE_LEAVE)]
    start = run.started // 1000
    for time, kind, scope, device in zip(*(ours[name].tolist() for name in (
            "time", "kind", "scope", "device"))):
        yield {"device": device, "name": text(run.scopes[scope]),
               "stage": "START" if kind == Kind.SCOPE_ENTER else "END",
               "time_us": start + time // 1000}


_ARRIVES = ("segment_alloc", "alloc")
_LEAVES = ("free_requested", "free_completed", "segment_free")


class _Tier:
    """Handles on the host or on disk, as blocks of a device of their own.

    A handle that leaves and did not come was there before. It leaves when it
    moves elsewhere, and when it is dropped.
    """

    def __init__(self, run, tier, index, frames):
        self.run, self.tier, self.index, self.frames = run, tier, index, frames
        events = run.events[(run.events["kind"] == Kind.MOVE)
                            | (run.events["kind"] == Kind.DROPPED)]
        self._moves, before, there = [], {}, {}
        for time, device, address, size, kind, category, scope in zip(*(
                events[name].tolist() for name in (
                    "time", "device", "address", "bytes", "kind", "category",
                    "scope"))):
            source, target_tier = (model.ends(category) if kind == Kind.MOVE
                                   else (category, 0))
            key = self._address(device, address)
            if source == tier and key not in there:
                before[key] = size
            if tier in (source, target_tier) and source != target_tier:
                arrives = target_tier == tier
                self._moves.append((time, arrives, key, size, scope))
                if arrives:
                    there[key] = (size, scope)
                else:
                    there.pop(key, None)
        self._before, self._there = before, there

    @staticmethod
    def _address(device, address):
        """Below 2^53 and of one device alone: what JavaScript can hold."""
        return (device + 1) << 48 | address & (1 << 48) - 1

    def trace(self):
        start, pool = self.run.started // 1000, model.Pool(self.index, 0)
        for address, size in self._before.items():
            for action in _ARRIVES:
                yield _event(action, address, size, pool, start,
                             self.frames.none, "", "unknown")
        for time, arrives, address, size, scope in self._moves:
            for action in _ARRIVES if arrives else _LEAVES:
                yield _event(action, address, size, pool, start + time // 1000,
                             self.frames.of(scope, 0),
                             self.frames.label(scope), "unknown")

    def segments(self):
        for address, (size, scope) in sorted(self._there.items()):
            block = _block(model.Block(address, size, size, scope=scope), None,
                           self.frames)
            yield {"device": self.index, "address": address,
                   "total_size": size, "allocated_size": size,
                   "active_size": size, "requested_size": size, "stream": 0,
                   "segment_type": "large", "segment_pool_id": (0, 0),
                   "is_expandable": False, "frames": self.frames.none,
                   "blocks": [block]}


def _write_json(file, made):
    """The snapshot, event by event."""
    encode = json.JSONEncoder(
        separators=(",", ":"), allow_nan=False).encode
    file.write(b"{")
    for i, (key, value) in enumerate(made.items()):
        file.write((("," if i else "") + encode(key) + ":").encode())
        if key == "device_traces":
            for j, trace in enumerate(value):
                file.write(b",[" if j else b"[[")
                write_rows(file, trace, encode)
                file.write(b"]")
            file.write(b"]" if value else b"[]")
        elif key in ("external_annotations", "segments"):
            file.write(b"[")
            write_rows(file, value, encode)
            file.write(b"]")
        else:
            file.write(encode(value).encode())
    file.write(b"}")
