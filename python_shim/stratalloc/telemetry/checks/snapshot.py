# SPDX-License-Identifier: Apache-2.0
"""Snapshots of PyTorch: what torch's tools and the web viewer need, and whether
the events give what is there at the end."""

import os

from stratalloc.telemetry import identities, import_torch, plain_pickle
from stratalloc.telemetry.checks.findings import Findings, load_json
from stratalloc.telemetry.errors import SnapshotError

_EXACT = 1 << 53  # what JavaScript's numbers hold


def check(path):
    with open(path, "rb") as file:
        head = file.read(2)
    if head[:1] == b"\x80":
        with open(path, "rb") as file:
            raw = file.read()
        try:
            value = plain_pickle.loads(raw)
        except SnapshotError as error:
            return [str(error)]
    else:
        raw, (value, wrong) = None, load_json(path)
        if wrong:
            return wrong
    found = Findings()
    if raw and raw[1] > 4:
        found.add(f"it is a pickle of protocol {raw[1]}; the web viewer reads "
                  "2 to 4")
    try:
        run = import_torch.from_snapshot(value, os.path.getsize(path))
    except SnapshotError as error:
        return [str(error)]
    if isinstance(value, dict):
        _segments(found, value.get("segments", ()))
        _traces(found, value)
    for one in identities.check(run):
        found.add(one)
    return found.done()


_FIELDS = ("device", "address", "total_size", "allocated_size", "active_size",
           "stream", "segment_type", "blocks")


def _segments(found, segments):
    for i, segment in enumerate(segments):
        missing = [name for name in _FIELDS if name not in segment]
        if missing:
            found.add(f"segment {i} has no {', '.join(missing)}")
            continue
        sums = dict.fromkeys(("active_allocated", "active_pending_free"), 0)
        total = 0
        for block in segment["blocks"]:
            total += block["size"]
            if block["state"] in sums:
                sums[block["state"]] += block["size"]
        if total != segment["total_size"]:
            found.add(f"segment {i} has {segment['total_size']} bytes, its "
                      f"blocks {total}")
        if sums["active_allocated"] != segment["allocated_size"]:
            found.add(f"segment {i} has {segment['allocated_size']} allocated "
                      f"bytes, its blocks {sums['active_allocated']}")
        if sum(sums.values()) != segment["active_size"]:
            found.add(f"segment {i} has {segment['active_size']} active bytes, "
                      f"its blocks {sum(sums.values())}")
        if segment["address"] + segment["total_size"] > _EXACT:
            found.add(f"segment {i} is at an address that the viewer cannot "
                      "hold")


def _traces(found, value):
    traces = value.get("device_traces", ())
    most = max((segment["device"] for segment in value.get("segments", ())
                if isinstance(segment.get("device"), int)), default=-1)
    if most >= len(traces):
        found.add(f"there are segments of device {most} and traces of "
                  f"{len(traces)} devices: the viewer will not open it")
    categories = {event["category"] for trace in traces for event in trace
                  if isinstance(event.get("category"), str)}
    if categories and "unknown" not in categories:
        found.add("no event has the category 'unknown': the viewer fails on "
                  "such files")
    for i, trace in enumerate(traces):
        for j, event in enumerate(trace):
            lacks = [name for name in (  # torch leaves frames out if not asked
                "size", "device_free" if event["action"] == "oom" else "addr")
                if name not in event]
            if lacks:
                found.add(f"event {j} of device {i} has no {', '.join(lacks)}")
