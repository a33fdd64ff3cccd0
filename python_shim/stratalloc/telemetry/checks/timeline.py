# SPDX-License-Identifier: Apache-2.0
"""The timeline JSON of MemoryTracer: its names and what they can be."""

from stratalloc.telemetry.checks.findings import (Findings, is_number,
                                                  load_json)

_TYPES = ("alloc", "free", "snapshot", "layer_enter", "layer_exit")
_EVENT = {"timestamp": float, "event_type": str, "size_bytes": int,
          "layer_name": (str, type(None)), "allocated_bytes": int, "reserved_bytes": int,
          "fragmentation_ratio": float}
_LAYER = {"layer_name": str, "peak_allocated": int, "peak_reserved": int,
          "total_allocations": int, "total_deallocations": int,
          "avg_fragmentation": float, "duration_ms": float}
_SUMMARY = {"total_events": int, "total_layers": int,
            "peak_allocated_mb": float, "peak_reserved_mb": float,
            "avg_fragmentation": float}


def check(path):
    value, wrong = load_json(path)
    if wrong:
        return wrong
    found = Findings()
    if not isinstance(value, dict) or not isinstance(
            value.get("events"), list) or not isinstance(
                value.get("layer_stats"), dict) or not isinstance(
                    value.get("summary"), dict):
        return ["it has no 'events', 'layer_stats' and 'summary'"]
    last = 0.0
    for i, event in enumerate(value["events"]):
        if not _fields(found, f"event {i}", event, _EVENT):
            continue
        if event["event_type"] not in _TYPES:
            found.add(f"event {i} has the type {event['event_type'][:40]!r}")
        if event["timestamp"] < last:
            found.add(f"event {i} is before the last one")
        last = event["timestamp"]
        if not 0 <= event["fragmentation_ratio"] <= 1:
            found.add(f"event {i} has the fragmentation "
                      f"{event['fragmentation_ratio']}")
        if event["allocated_bytes"] > event["reserved_bytes"]:
            found.add(f"event {i} has more allocated than reserved")
    for name, layer in value["layer_stats"].items():
        if _fields(found, f"layer {name[:80]!r}", layer, _LAYER):
            if layer["layer_name"] != name:
                found.add(f"layer {name[:80]!r} has another name")
            if not 0 <= layer["avg_fragmentation"] <= 1:
                found.add(f"layer {name[:80]!r} has a fragmentation beyond 1")
    if _fields(found, "the summary", value["summary"], _SUMMARY):
        if value["summary"]["total_layers"] != len(value["layer_stats"]):
            found.add("the summary counts other layers than there are")
    return found.done()


def _fields(found, where, value, fields):
    if not isinstance(value, dict):
        found.add(f"{where} is no dict")
        return False
    wrong = [name for name, kind in fields.items() if not (
        is_number(value.get(name)) if kind is float
        else isinstance(value.get(name), kind)
        and not isinstance(value.get(name), bool))]
    if wrong:
        found.add(f"{where} has no {', '.join(wrong)} that could be one")
    return not wrong
