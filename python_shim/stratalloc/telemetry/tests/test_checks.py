# SPDX-License-Identifier: Apache-2.0
"""Each check sees what it is there for: a good file, broken in one way."""

import gzip
import io
import json
import pickle

import pytest

import formats
import made_runs
from stratalloc.telemetry.formats import FORMATS, check
from stratalloc.telemetry.exports.messages import messages


def _json(change):
    def broken(raw):
        value = json.loads(raw)
        change(value)
        return json.dumps(value).encode()
    return broken


def _pickle(change, protocol=4):
    def broken(raw):
        value = pickle.loads(raw)
        change(value)
        return pickle.dumps(value, protocol)
    return broken


def _text(old, new):
    return lambda raw: raw.replace(old, new, 1)


def _message(package, name, change, zipped=False):
    def broken(raw):
        value = messages(package)[name]()
        value.ParseFromString(gzip.decompress(raw) if zipped else raw)
        change(value)
        raw = value.SerializeToString()
        return gzip.compress(raw) if zipped else raw
    return broken


def _events(change):
    """Of TensorBoard's: `change` is given the list of events."""
    def broken(raw):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        events, at = [], 0
        while at < len(raw):
            length = int.from_bytes(raw[at:at + 8], "little")
            events.append(Event.FromString(raw[at + 12:at + 12 + length]))
            at += length + 16
        change(events)
        out = io.BytesIO()
        for one in events:
            RecordWriter(out).write(one.SerializeToString())
        return out.getvalue()
    return broken


def _scalar(tag, step, value):
    """Another value of a tag at a step."""
    def change(events):
        one = next(one for one in events if one.step == step and [
            value.tag for value in one.summary.value] == [tag])
        one.summary.value[0].simple_value = value
    return _events(change)


def _table(change):
    """Of Parquet's: `change` makes another table of it."""
    def broken(raw):
        from pyarrow import parquet

        out = io.BytesIO()
        parquet.write_table(change(parquet.read_table(io.BytesIO(raw))), out)
        return out.getvalue()
    return broken


def _column(name, value):
    def change(table):
        at = table.schema.names.index(name)
        return table.set_column(at, table.schema.field(name), [
            [value(one) for one in table[name].to_pylist()]])
    return _table(change)


def _metric(name, change):
    return _json(lambda made: change(_first(
        made["resource_metrics"][0]["scope_metrics"][0]["metrics"],
        name=name)))


def _point(name, **values):
    return _metric(name, lambda metric: metric["data"]["data_points"][
        0].update(values))


def _profile(name, **values):
    def change(made):
        one = next(one for one in made["profiles"]
                   if one["name"].startswith(name))
        for key, value in values.items():
            one[key] = value(one[key])
    return _json(change)


def _swap(events):
    return [events[0], events[2], events[1], *events[3:]]


def _first(events, **wanted):
    return next(one for one in events if all(
        one.get(key) == value for key, value in wanted.items()))


def _packet(trace, kind):
    return next(one.track_event for one in trace.packet
                if one.HasField("track_event") and one.track_event.type == kind)


_BROKEN = [
    # speedscope: what the schema does not see
    ("speedscope.json", "lengths", "weights: it will not open",
     _profile("peak", weights=lambda some: some[:-1])),
    ("speedscope.json", "negative", "the weight -5",
     _profile("peak", weights=lambda some: [-5, *some[1:]])),
    ("speedscope.json", "range", "names a frame that is not there",
     _profile("churn", samples=lambda some: [[999999], *some[1:]])),
    ("speedscope.json", "sum", "add up to",
     _profile("churn", endValue=lambda end: end + 1)),
    ("speedscope.json", "nesting", "not the last one opened",
     _profile("modules", events=lambda some: [*some[:-2], some[-1]])),
    ("speedscope.json", "order", "before", _profile(
        "modules", events=lambda some: [{**some[0], "at": 1e18}, *some[1:]])),
    ("speedscope.json", "open", "frames open",
     _profile("modules", events=lambda some: some[:-1])),
    ("speedscope.json", "unit", "schema",
     _profile("peak", unit=lambda _: "megabytes")),
    ("speedscope.json", "twice", "is there twice", _json(
        lambda made: made["shared"]["frames"].append(
            made["shared"]["frames"][0]))),
    ("speedscope.json", "schema", "schema", _json(
        lambda made: made.pop("shared"))),
    # snapshots
    ("snapshot.pickle", "protocol", "protocol 5", _pickle(
        lambda made: None, 5)),
    ("snapshot.pickle", "category", "'unknown'", _pickle(
        lambda made: [trace.pop(0) for trace in made["device_traces"]
                      for event in trace[:1]] and [
            event.update(category="activation")
            for trace in made["device_traces"] for event in trace])),
    ("snapshot.pickle", "sum", "its blocks", _pickle(
        lambda made: made["segments"][0].update(total_size=3))),
    ("snapshot.pickle", "allocated", "allocated bytes, its blocks", _pickle(
        lambda made: made["segments"][0].update(allocated_size=3))),
    ("snapshot.pickle", "device", "will not open it", _pickle(
        lambda made: made["device_traces"].clear())),
    ("snapshot.pickle", "free", "events give the end", _pickle(
        lambda made: made["device_traces"][0].remove(_first(
            made["device_traces"][0], action="free_completed")))),
    ("snapshot.pickle", "size", "has no size", _pickle(
        lambda made: made["device_traces"][0][3].pop("size"))),
    ("snapshot.json", "address", "cannot hold", _json(
        lambda made: made["segments"].append(
            {**made["segments"][0], "address": 1 << 60, "blocks": []}))),
    ("snapshot.pickle", "code", "could run code",
     lambda raw: raw[:2] + b"cos\nsystem\n" + raw[2:]),
    # traces
    ("trace.json", "phase", "the phase", _json(
        lambda made: made["traceEvents"][5].update(ph="?"))),
    ("trace.json", "nesting", "inside of", _json(
        lambda made: _first(made["traceEvents"], ph="E").update(name="x"))),
    ("trace.json", "open", "slices open", _json(
        lambda made: made["traceEvents"].remove(
            _first(made["traceEvents"], ph="E", name="net")))),
    ("trace.json", "counter", "without numbers", _json(
        lambda made: _first(made["traceEvents"], ph="C").update(
            args={"bytes": "3"}))),
    ("trace.json", "time", "no ts", _json(
        lambda made: _first(made["traceEvents"], ph="C").update(ts=None))),
    ("trace.json", "pair", "asynchronous", _json(
        lambda made: made["traceEvents"].remove(
            _first(made["traceEvents"], ph="b")))),
    ("trace.json", "nan", "no JSON", _text(b'"ts":0,', b'"ts":NaN,')),
    ("trace.json", "infinite", "no JSON", _text(b'"ts":0,', b'"ts":1e999,')),
    ("trace.pftrace", "track", "was not told before", _message(
        "perfetto", "Trace", lambda trace: setattr(
            _packet(trace, 4), "track_uuid", 999))),
    ("trace.pftrace", "end", "did not begin", _message(
        "perfetto", "Trace", lambda trace: setattr(
            _packet(trace, 1), "type", 3))),
    ("trace.pftrace", "open", "slices open", _message(
        "perfetto", "Trace", lambda trace: setattr(
            _packet(trace, 2), "type", 3))),
    ("trace.pftrace", "value", "without a value", _message(
        "perfetto", "Trace", lambda trace: _packet(trace, 4).ClearField(
            "counter_value"))),
    ("trace.pftrace", "order", "before the last one", _message(
        "perfetto", "Trace", lambda trace: setattr(
            next(one for one in trace.packet
                 if one.track_event.type == 4), "timestamp", 1 << 60))),
    # profiles
    ("profile.pb.gz", "values", "values for", _message(
        "pprof", "Profile", lambda made: made.sample[0].value.append(3),
        True)),
    ("profile.pb.gz", "location", "names no location", _message(
        "pprof", "Profile", lambda made: made.sample[0].location_id.append(
            999), True)),
    ("profile.pb.gz", "text", "names text", _message(
        "pprof", "Profile", lambda made: setattr(
            made.function[0], "name", 9999), True)),
    ("profile.pb.gz", "function", "names no function", _message(
        "pprof", "Profile", lambda made: setattr(
            made.location[0].line[0], "function_id", 9999), True)),
    ("profile.pb.gz", "negative", "below 0", _message(
        "pprof", "Profile", lambda made: made.sample[0].value.__setitem__(
            0, -4), True)),
    ("profile.pb.gz", "id", "there twice", _message(
        "pprof", "Profile", lambda made: setattr(
            made.location[0], "id", made.location[1].id), True)),
    # timeline
    ("timeline.json", "type", "the type", _json(
        lambda made: made["events"][0].update(event_type="malloc"))),
    ("timeline.json", "field", "size_bytes", _json(
        lambda made: made["events"][0].pop("size_bytes"))),
    ("timeline.json", "order", "before the last", _json(
        lambda made: made["events"][0].update(timestamp=1e9))),
    ("timeline.json", "sum", "more allocated than reserved", _json(
        lambda made: made["events"][-1].update(allocated_bytes=1 << 60))),
    ("timeline.json", "layers", "counts other layers", _json(
        lambda made: made["layer_stats"].popitem())),
    # rows
    ("events.csv", "names", "first line", _text(b"time_ns", b"time")),
    ("events.csv", "number", "the line", _text(b",33,", b",3x3,")),
    ("events.csv", "lost", "has the dropped_events 3, and the first one 0",
     lambda raw: b",3,0,0,0,0\n".join(raw.rsplit(b",0,0,0,0,0\n", 1))),
    ("events.csv", "cost", "less than nothing",
     lambda raw: raw.replace(b",0,0,0,0,0\n", b",0,0,0,0,-1\n")),
    ("events.csv", "fields", "fields of", _text(b"\n", b"\n1,2\n")),
    ("events.parquet", "names", "columns are not ours",
     _table(lambda table: table.drop_columns(["line"]))),
    ("events.parquet", "type", "the type of address", _table(
        lambda table: table.set_column(3, "address", table[
            "address"].cast("int64")))),
    ("events.parquet", "sum", "more allocated than active",
     _column("active", lambda _: 0)),
    ("events.parquet", "requested", "more requested than active",
     _column("requested", lambda _: 1 << 60)),
    ("events.parquet", "order", "before the last one of its device",
     _column("time_ns", lambda time: 1 << 60 if time == 1000 else time)),
    # metrics
    ("metrics.prom", "total", "_total", lambda raw: raw.replace(
        b"stratalloc_trace_events_total", b"stratalloc_trace_events")),
    ("metrics.prom", "twice", "there twice",
     lambda raw: raw + raw.split(b"\n")[-2] + b"\n"),
    ("metrics.prom", "parse", "does not parse", _text(b'"} ', b'"} x')),
    ("otel.json", "name", "no name of an instrument", _metric(
        "stratalloc.frees", lambda made: made.update(name="9 frees"))),
    ("otel.json", "same", "is there twice", _metric(
        "stratalloc.frees", lambda made: made.update(name="stratalloc.ooms"))),
    ("otel.json", "labels", "twice with the same attributes", _metric(
        "stratalloc.frees", lambda made: made["data"]["data_points"].append(
            made["data"]["data_points"][0]))),
    ("otel.json", "unit", "the unit 'KiB'", _metric(
        "hw.gpu.memory.usage", lambda made: made.update(unit="KiB"))),
    ("otel.json", "total", "adds up to no total", _metric(
        "stratalloc.frees", lambda made: made["data"].update(
            aggregation_temporality=1))),
    ("otel.json", "points", "has no list 'data_points'", _metric(
        "stratalloc.frees", lambda made: made["data"].pop("data_points"))),
    ("otel.json", "text", "has the value 'many'",
     _point("stratalloc.frees", value="many")),
    ("otel.json", "negative", "is -3", _point("stratalloc.frees", value=-3)),
    ("otel.json", "time", "of no time that can be",
     _point("stratalloc.frees", time_unix_nano=5)),
    ("otel.json", "card", "of which card",
     _point("hw.gpu.memory.usage", attributes={"hw.type": "gpu"})),
    ("otel.json", "sum", "its categories add up to",
     _point("stratalloc.memory_allocated_bytes", value=5)),
    ("otel.json", "help", "does not say what it is", _metric(
        "stratalloc.frees", lambda made: made.pop("description"))),
    # scalars
    ("events.tfevents", "version", "does not say brain.Event:2", _events(
        lambda made: made.pop(0))),
    ("events.tfevents", "length", "a length that is damaged",
     lambda raw: bytes([raw[0] ^ 1]) + raw[1:]),
    ("events.tfevents", "record", "is damaged",
     lambda raw: raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:]),
    ("events.tfevents", "order", "before the last one", _events(
        lambda made: made.insert(1, made[-1]))),
    ("events.tfevents", "time", "before the last one", _events(
        lambda made: setattr(made[1], "wall_time", 1e12))),
    ("events.tfevents", "twice", "(GiB)' twice", _events(
        lambda made: made.insert(1, made[1]))),
    ("events.tfevents", "nan", "says nan",
     _scalar("memory/num_ooms", 0, float("nan"))),
    ("events.tfevents", "negative", "says -1.0",
     _scalar("memory/num_ooms", 0, -1)),
    ("events.tfevents", "share", "says 101.0",
     _scalar("memory/fragmentation(%)", 1, 101)),
    ("events.tfevents", "nothing", "says nothing", _events(
        lambda made: made[1].summary.value[0].ClearField("simple_value"))),
    ("events.tfevents", "sum", "more than its memory/max_active",
     _scalar("memory/parameter(GiB)", 1, 3)),
    ("metrics.om", "end", "does not parse", _text(b"# EOF\n", b"")),
]


def test_every_format_is_broken_in_some_way():
    assert {formats.WRITERS[one[0]] for one in _BROKEN} == set(FORMATS)


@pytest.mark.parametrize("name, what, says, breaks", _BROKEN,
                         ids=[f"{one[0]}-{one[1]}" for one in _BROKEN])
def test_a_file_that_is_broken_in_one_way_is_told(name, what, says, breaks,
                                                  tmp_path):
    path = formats.export(made_runs.story(), name, tmp_path)
    raw = path.read_bytes()
    assert formats.wrong(path) == []
    path.write_bytes(breaks(raw))
    assert path.read_bytes() != raw
    found = formats.wrong(path)
    assert any(says in one for one in found), (what, found)


def test_findings_of_a_file_that_is_wrong_all_over_are_few(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [3] * 100_000}))
    found = formats.wrong(path)
    assert len(found) == 21 and found[-1] == "and 99980 more"


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * (64 << 20)))
    assert formats.wrong(path) != []


def test_a_chrome_trace_may_have_names_of_any_type(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([
        {"ph": "B", "pid": 1, "tid": 1, "ts": 0, "name": "a"},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 1, "name": 5}]))
    assert any("ends '5' inside of 'a'" in one
               for one in check("chrome", str(path)))


def test_a_checked_snapshot_is_bounded_by_its_size(tmp_path):
    event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0}
    trace = [event] * 30000
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(
        {"segments": [], "device_traces": [trace] * 40}, 4))
    assert "over and over" in check("snapshot", str(path))[0]
