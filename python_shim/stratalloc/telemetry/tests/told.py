# SPDX-License-Identifier: Apache-2.0
"""What a file of each format says of a device's sums, by who else reads it.

read(path) -> {what: bytes or count} with those that the format tells, of one
device: "allocated", "active", "requested" and "reserved" at the end, "peak
allocated" and so on, "bytes in all" and "blocks in all" that were allocated.
"""

import csv
import gzip
import io
import json
import pickle

SUMS = ("allocated", "active", "requested", "reserved")


def read(path):
    raw = path.read_bytes()
    return _READERS[path.name](gzip.decompress(raw) if path.suffix == ".gz"
                               else raw)


def _curves(found):
    """Of {"allocated": [after each point]}."""
    return {**{name: found[name][-1] for name in SUMS},
            **{f"peak {name}": max(found[name]) for name in SUMS}}


def _speedscope(raw):
    found = {one["name"]: sum(one["weights"]) for one in json.loads(
        raw)["profiles"] if one["type"] == "sampled"}
    return {"peak allocated": found["peak holders cuda:0"],
            "bytes in all": found["churn cuda:0"]}


def _snapshot(load):
    def snapshot(raw):
        segments = load(raw)["segments"]
        return {name: sum(one[key] for one in segments) for name, key in zip(
            SUMS, ("allocated_size", "active_size", "requested_size",
                   "total_size"))}
    return snapshot


def _chrome(raw):
    found = {}
    for one in json.loads(raw)["traceEvents"]:
        if one["ph"] == "C":
            found.setdefault(one["name"].removesuffix(" (memory)"),
                             []).append(one["args"]["bytes"])
    return _curves(found)


def perfetto(raw):
    """counter -> [value], by the decoder that the package perfetto has."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(raw)
    names, found = {}, {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid] = track.name
            if track.HasField("counter"):
                assert track.counter.unit == 3  # UNIT_SIZE_BYTES
        elif packet.track_event.type == perfetto_trace_pb2.TrackEvent.Type.Value(
                "TYPE_COUNTER"):
            found.setdefault(names[packet.track_event.track_uuid], []).append(
                packet.track_event.counter_value)
    return found


def _pprof(raw):
    from stratalloc.telemetry.exports.messages import messages

    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(raw)
    space, objects, held, _ = (sum(one.value[i] for one in profile.sample)
                               for i in range(4))
    return {"bytes in all": space, "blocks in all": objects,
            "peak allocated": held}


def _timeline(raw):
    made, mib = json.loads(raw), 1 << 20
    last = made["events"][-1]
    return {"allocated": last["allocated_bytes"],
            "reserved": last["reserved_bytes"],
            "peak allocated": made["summary"]["peak_allocated_mb"] * mib,
            "peak reserved": made["summary"]["peak_reserved_mb"] * mib}


def _rows(rows):
    blocks = [int(row["block_bytes"]) for row in rows
              if row["event"] == "alloc"]
    return {**_curves({name: [int(row[name]) for row in rows]
                       for name in SUMS}),
            "bytes in all": sum(blocks), "blocks in all": len(blocks)}


def _csv(raw):
    return _rows(list(csv.DictReader(io.StringIO(raw.decode(), newline=""))))


def parquet(raw):
    """Its rows."""
    from pyarrow import parquet as library

    return library.read_table(io.BytesIO(raw)).to_pylist()


def _samples(parser):
    """name -> [(labels' values, value)], of a parser's families."""
    def samples(raw):
        found = {}
        for family in parser().text_string_to_metric_families(raw.decode()):
            for one in family.samples:
                found.setdefault(one.name, []).append(
                    (tuple(one.labels.values()), one.value))
        return found
    return samples


def _plain():
    from prometheus_client import parser

    return parser


def _strict():
    from prometheus_client.openmetrics import parser

    return parser


def _opentelemetry(raw):
    """As _samples, with the names that Prometheus has for them."""
    from stratalloc.telemetry.exports import otel

    known = {name: short for short, name in otel.KNOWN.items()}
    made, found = json.loads(raw), {}
    for one in made["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
        name = "stratalloc_" + known.get(one["name"], one[
            "name"].removeprefix("stratalloc."))
        name += "_total" * one["data"].get("is_monotonic", False)
        found[name] = [(tuple(point["attributes"].values()), point["value"])
                       for point in one["data"]["data_points"]]
    return found


# name of the file -> {metric: [(labels' values, value)]} of its bytes
METRICS = {"metrics.prom": _samples(_plain), "metrics.om": _samples(_strict),
           "otel.json": _opentelemetry}


def _metrics(name):
    def read_metrics(raw):
        found = METRICS[name](raw)

        def one(metric):
            return found[f"stratalloc_{metric}"][0][1]  # the device, then tiers
        return {**{sums: one(f"memory_{sums}_bytes") for sums in SUMS},
                "peak allocated": one("memory_peak_allocated_bytes"),
                "peak reserved": one("memory_peak_reserved_bytes"),
                "bytes in all": one("allocated_bytes_total"),
                "blocks in all": one("allocations_total")}
    return read_metrics


def _tensorboard(raw):
    from tensorboard.compat.proto.event_pb2 import Event

    steps, at = {}, 0
    while at < len(raw):
        length = int.from_bytes(raw[at:at + 8], "little")
        event = Event.FromString(raw[at + 12:at + 12 + length])
        for one in event.summary.value:
            steps.setdefault(event.step, {})[one.tag] = one.simple_value
        at += length + 16
    return scalars([steps[step] for step in sorted(steps)])


def scalars(steps):
    """Of [{tag: value}], one a step."""
    from stratalloc.telemetry import model

    gib, last = 1 << 30, steps[-1]
    return {"peak active": gib * max(
                one["memory/max_active(GiB)"] for one in steps),
            "peak reserved": gib * max(
                one["memory/max_reserved(GiB)"] for one in steps),
            "reserved": gib * last["memory/tier_device(GiB)"],
            "allocated": gib * sum(last.get(f"memory/{name}(GiB)", 0)
                                   for name in model.CATEGORIES)}


_READERS = {
    "speedscope.json": _speedscope,
    "snapshot.pickle": _snapshot(pickle.loads),
    "snapshot.json": _snapshot(json.loads),
    "trace.json": _chrome, "trace.json.gz": _chrome,
    "trace.pftrace": lambda raw: _curves(perfetto(raw)),
    "profile.pb.gz": _pprof, "timeline.json": _timeline,
    "events.csv": _csv, "events.parquet": lambda raw: _rows(parquet(raw)),
    **{name: _metrics(name) for name in METRICS},
    "events.tfevents": _tensorboard,
}
