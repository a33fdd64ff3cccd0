# SPDX-License-Identifier: Apache-2.0
"""Chrome's trace JSON, which Perfetto and chrome://tracing open.

A device is a process: counters of its sums, of categories, instants of what it
was asked for. A thread's scopes are slices of it; moves between tiers are
asynchronous slices, since they overlap. Microseconds.

Viewers fail on large files: counters have `most` points (peaks and the last
value always are), and the instants `[memory]` are left out of longer runs,
which `otherData` says; perfetto.py is for those.
"""

import json

import numpy as np

from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.exports import instants, samples, spans
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target, text, zipped
from stratalloc.telemetry.model import Kind

_MOST = 100_000
THREADS = 1 << 16  # pid of the process whose threads have scopes


def write(run, path, most=_MOST):
    """Zipped if the name ends in .gz."""
    encode = json.JSONEncoder(
        separators=(",", ":"), allow_nan=False).encode
    opened = zipped if str(path).endswith(".gz") else target
    with opened(path) as file:
        file.write(b'{"displayTimeUnit":"ns","otherData":'
                   + encode({**notes(run), "memory_instants":
                             len(run.events) <= most}).encode()
                   + b',"traceEvents":[')
        for i, event in enumerate(_events(run, most)):
            file.write((("," if i else "") + encode(event)).encode())
        file.write(b"]}")


def _events(run, most):
    yield _named("process_name", THREADS, 0, text(str(
        run.about.get("command", "threads"))))
    for thread in spans.threads(run):
        yield _named("thread_name", THREADS, thread, text(run.threads[thread]))
        yield from _slices(run, thread, most)
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        yield _named("process_name", index, 0, f"device {index}")
        yield from _counters(run, walked, most)
        if len(run.events) <= most:
            yield from _memory(run, walked)
    yield from _instants(run)
    yield from _moves(run)


def _named(what, pid, tid, name):
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0,
            "args": {"name": name}}


def _slices(run, thread, most):
    times = run.events["time"]
    end = max(run.duration, int(times.max(initial=0)))
    for event, opens, scope in spans.bounded(run, thread, most):
        at = int(times[event]) if event < len(times) else end
        yield {"ph": "B" if opens else "E", "name": text(run.scopes[scope]),
               "cat": "scope", "pid": THREADS, "tid": thread, "ts": at / 1000}


def _counters(run, walked, most):
    times = run.events["time"]
    curves = instants.curves(walked)
    for group, name, curve in progress.over(curves, "writing counters"):
        points = zip(*samples.samples(curve, most // len(curves)))
        for at, value in [(-1, curve.base), *points]:
            yield {"ph": "C", "name": f"{name} ({group})",
                   "pid": walked.index, "tid": 0, "cat": "memory",
                   "ts": int(times[at]) / 1000 if at >= 0 else 0,
                   "args": {"bytes": int(value)}}


def _memory(run, walked):
    """Instants with the names that readers of torch's profiler know."""
    events = run.events
    ours = np.flatnonzero((events["device"] == walked.index)
                          & ((events["kind"] == Kind.ALLOC)
                             | (events["kind"] == Kind.FREE_REQUESTED)))
    columns = events[ours]
    for at, time, kind, address, size, scope in zip(ours.tolist(), *(
            columns[name].tolist() for name in (
                "time", "kind", "address", "bytes", "scope"))):
        yield {"ph": "i", "s": "p", "name": "[memory]", "cat": "memory",
               "pid": walked.index, "tid": 0, "ts": time / 1000,
               "args": {"Addr": address,
                        "Bytes": size if kind == Kind.ALLOC else -size,
                        "Total Allocated": walked.allocated.at(at),
                        "Total Reserved": walked.reserved.at(at),
                        "Device Type": 1, "Device Id": walked.index,
                        "Scope": text(run.scopes[scope]) if scope else ""}}


def _instants(run):
    for one in instants.instants(run):
        yield {"ph": "i", "s": "g" if one.kind in (Kind.OOM, Kind.MARK) else "p",
               "name": one.name, "cat": "event", "pid": one.device, "tid": 0,
               "ts": one.time / 1000,
               "args": {"Addr": one.address, "Bytes": one.bytes}}


def _moves(run):
    events = run.events
    ours = events[events["kind"] == Kind.MOVE]
    for i, (time, address, size, aux, category, scope, device) in enumerate(
            zip(*(ours[name].tolist() for name in (
                "time", "address", "bytes", "aux", "category", "scope",
                "device")))):
        source, to = (model.TIERS[one] for one in model.ends(category))
        for ph, at in (("b", time - min(aux, time)), ("e", time)):
            yield {"ph": ph, "id": i, "name": f"{source} to {to}",
                   "cat": "move", "pid": device, "tid": 0, "ts": at / 1000,
                   "args": {"Addr": address, "Bytes": size,
                            "Scope": text(run.scopes[scope]) if scope else ""}}
