# SPDX-License-Identifier: Apache-2.0
"""The timeline JSON of MemoryTracer.export_timeline: events, layer_stats,
summary, with the names that its readers use; seconds and bytes."""

import json

import numpy as np

from stratalloc.telemetry import progress, replay
from stratalloc.telemetry.exports.layers import layers
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target, text, write_rows
from stratalloc.telemetry.model import Kind

_TYPES = {Kind.ALLOC: "alloc", Kind.FREE_REQUESTED: "free",
          Kind.SNAPSHOT: "snapshot", Kind.SCOPE_ENTER: "layer_enter",
          Kind.SCOPE_LEAVE: "layer_exit"}
_MIB = 1 << 20


def write(run, path):
    walked = {index: replay.Replay(run, index)
              for index in replay.devices(run)}
    stats = layers(run, walked)
    write_parts(path, events(run, walked), stats, summary(run, walked, stats),
                notes(run))


def write_parts(path, rows, stats, told, recording):
    """The file of what others have worked out: `rows` dicts of events, in
    order; the rest as the file has it. An OSError says why it is not there."""
    encode = json.JSONEncoder(
        separators=(",", ":"), allow_nan=False).encode
    with target(path) as file:
        file.write(b'{"events":[')
        write_rows(file, rows, encode)
        file.write(b'],"layer_stats":' + encode(stats).encode()
                   + b',"summary":' + encode(told).encode()
                   + b',"recording":' + encode(recording).encode() + b"}")


def events(run, walked):
    """Dicts, one for each event that a MemoryEvent can be."""
    sums = {index: [getattr(one, name).after.tolist()
                    for name in ("allocated", "reserved")]
            for index, one in walked.items()}
    nothing = [0] * len(run.events), [0] * len(run.events)
    ours = np.flatnonzero(np.isin(run.events["kind"],
                                  [int(kind) for kind in _TYPES]))
    columns = run.events[ours]
    rows = zip(ours.tolist(), *(columns[name].tolist() for name in (
        "time", "kind", "address", "bytes", "scope", "device")))
    for at, time, kind, address, size, scope, device in progress.over(
            rows, "writing events", len(ours)):
        allocated, reserved = (one[at] for one in sums.get(device, nothing))
        yield {"timestamp": time / 1e9, "event_type": _TYPES[kind],
               "size_bytes": size if kind <= Kind.FREE_COMPLETED else 0,
               "layer_name": text(run.scopes[scope]) if scope else None,
               "allocated_bytes": allocated, "reserved_bytes": reserved,
               "fragmentation_ratio": _fragmentation(allocated, reserved),
               "device": device}


def _fragmentation(allocated, reserved):
    return (reserved - allocated) / reserved if reserved > 0 else 0.0


def summary(run, walked, stats):
    ratios = [_fragmentation(one.allocated.at(one.peak),
                             one.reserved.at(one.peak))
              for one in walked.values()]
    return {
        "total_events": len(run.events), "total_layers": len(stats),
        "peak_allocated_mb": sum(one.allocated.most()
                                 for one in walked.values()) / _MIB,
        "peak_reserved_mb": sum(one.reserved.most()
                                for one in walked.values()) / _MIB,
        "avg_fragmentation": sum(ratios) / len(ratios) if ratios else 0.0,
        "duration_s": run.duration / 1e9,
        "devices": sorted(walked)}
