# SPDX-License-Identifier: Apache-2.0
"""Timelines, rows and traces that are exported say what the slow model knows:
sums, peaks, names."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import formats
import made_runs
import told
from made_runs import MIB
from exported import RUNS, SOME, bytes_of, json_of
from stratalloc._rendering import tree as _tree
from stratalloc.telemetry import model
from stratalloc.telemetry.exports import perfetto, samples, spans
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Curve


@SOME
@RUNS
def test_timeline_and_rows_have_the_sums_after_every_event(seed, steps):
    run, maker = made_runs.make(seed, steps)
    kinds = (Kind.ALLOC, Kind.FREE_REQUESTED, Kind.SNAPSHOT, Kind.SCOPE_ENTER,
             Kind.SCOPE_LEAVE)
    made = json_of(run, "timeline.json")
    assert [(one["allocated_bytes"], one["reserved_bytes"])
            for one in made["events"]] == [
        (sums[0], sums[3]) for event, sums in zip(maker.events, maker.sums)
        if event[8] in kinds]
    mib = 1 << 20
    assert made["summary"]["peak_allocated_mb"] * mib == max(
        (one[0] for one in maker.sums), default=0)
    assert made["layer_stats"] == _layers(run, maker)
    rows = list(csv.DictReader(io.StringIO(
        bytes_of(run, "events.csv").decode())))
    assert [tuple(int(row[name]) for name in ("allocated", "active",
                                              "requested", "reserved"))
            for row in rows] == maker.sums
    assert [row["event"] for row in rows] == [
        Kind(event[8]).name.lower() for event in maker.events]
    assert _parquet(bytes_of(run, "events.parquet")) == rows


def _parquet(raw):
    """Its rows as CSV's: texts."""
    return [{key: str(value) for key, value in row.items()}
            for row in told.parquet(raw)]


def _layers(run, maker):
    """MemoryTracer's layers, event by event."""
    found, inside = {}, []
    ratios, begun = {}, {}

    def of(scope):
        return found.setdefault(run.scopes[scope], {
            "layer_name": run.scopes[scope], "peak_allocated": 0,
            "peak_reserved": 0, "peak_owned": 0, "total_allocations": 0,
            "total_deallocations": 0, "avg_fragmentation": 0.0,
            "duration_ms": 0.0})

    owned, sizes = {}, {}
    for event, (allocated, _, _, reserved) in zip(maker.events, maker.sums):
        time, address, _, size, scope, _, _, _, kind, *_ = event
        if kind == Kind.SCOPE_ENTER:
            if scope not in inside:
                begun[scope] = time
            inside.append(scope)
        touched = set(inside)
        if kind == Kind.SCOPE_LEAVE:
            inside.pop()
            if scope not in inside:
                of(scope)["duration_ms"] += (time - begun[scope]) / 1e6
        for one in touched:
            if reserved:
                ratios.setdefault(one, []).append(
                    (reserved - allocated) / reserved)
        if kind == Kind.ALLOC and scope:
            touched.add(scope)
            of(scope)["total_allocations"] += 1
            owned[scope] = owned.get(scope, 0) + size
            sizes[address] = size
            of(scope)["peak_owned"] = max(of(scope)["peak_owned"],
                                          owned[scope])
        if kind == Kind.FREE_REQUESTED and scope:
            of(scope)["total_deallocations"] += 1
            owned[scope] -= sizes[address]
        for one in touched:
            layer = of(one)
            layer["peak_allocated"] = max(layer["peak_allocated"], allocated)
            layer["peak_reserved"] = max(layer["peak_reserved"], reserved)
    for one, values in ratios.items():
        of(one)["avg_fragmentation"] = sum(values) / len(values)
    return {name: {key: pytest.approx(value) for key, value in layer.items()}
            for name, layer in found.items()}


def test_layers_count_blocks_and_no_moves():
    """One block in three handles; its first and then its last leave, the first
    returns and leaves again, and the block is freed: what is left of it, in its
    middle, and its beginning. Another one is evicted and freed away."""
    one, handle = 64 * MIB, 2 * MIB
    gone = (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED)
    moved = (model.EVICTED, model.RESTORED)

    def event(kind, address, size, flags=0, scope=1):
        return (0, address, size, size, scope, 0, 0, 0, kind, 1, 0, flags)

    def leaves(address, size):
        return [event(kind, address, size, moved[0]) for kind in gone]

    run = model.Run(scopes=["(no scope)", "net", "cache"])
    run.devices.append(model.Device(0, start=()))
    run.events = np.array([
        event(Kind.SEGMENT_MAP, one, 16 * handle),
        event(Kind.ALLOC, one, 3 * handle),
        event(Kind.ALLOC, one + 4 * handle, handle, scope=2),
        *leaves(one, 3 * handle),
        event(Kind.ALLOC, one + handle, 2 * handle, moved[0]),
        event(Kind.ALLOC, one, handle, moved[1]),
        *leaves(one, handle),
        *leaves(one + handle, 2 * handle),
        event(Kind.ALLOC, one + handle, handle, moved[0]),
        *leaves(one + 4 * handle, handle),
        *[event(kind, one + handle, handle) for kind in gone],
        event(Kind.FREED_AWAY, one, 3 * handle),
        event(Kind.FREED_AWAY, one + 4 * handle, handle, scope=2),
    ], model.EVENT)
    made = json_of(run, "timeline.json")["layer_stats"]
    assert {name: (layer["total_allocations"], layer["total_deallocations"])
            for name, layer in made.items()} == {"net": (1, 1),
                                                 "cache": (1, 1)}


def test_parquet_has_the_rows_of_csv(tmp_path):
    from pyarrow import parquet

    run = made_runs.hostile()
    path = formats.export(run, "events.parquet", tmp_path)
    table = parquet.read_table(path)
    rows = list(csv.DictReader(io.StringIO(
        bytes_of(run, "events.csv").decode(), newline="")))
    assert _parquet(path.read_bytes()) == rows
    assert table.schema.metadata[b"dropped_events"] == b"0"


@SOME
@RUNS
def test_counters_of_traces_end_and_peak_where_the_run_does(seed, steps):
    run, maker = made_runs.make(seed, steps, tiering=True)
    chrome = {}
    for event in json_of(run, "trace.json")["traceEvents"]:
        if event["ph"] == "C":
            chrome.setdefault(event["name"], []).append(event["args"]["bytes"])
    ours = told.perfetto(bytes_of(run, "trace.pftrace"))
    for name in samples.CURVES:
        column = [sums[("allocated", "active", "requested",
                        "reserved").index(name)] for sums in maker.sums]
        for found in (chrome[f"{name} (memory)"], ours[name]):
            assert found[-1] == (column[-1] if column else 0)
            assert max(found) == max(column, default=0)
    held = dict.fromkeys(model.CATEGORIES, 0)
    for (_, category, _), size in maker.holders().items():
        held[model.CATEGORIES[category]] += size
    for found, named in ((chrome, "{} (categories)"), (ours, "category {}")):
        assert held == {name: found.get(named.format(name), [0])[-1]
                        for name in held}


def test_perfettos_own_decoder_reads_every_field_that_we_write():
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    raw = bytes_of(made_runs.hostile(), "trace.pftrace")
    theirs = perfetto_trace_pb2.Trace()
    theirs.ParseFromString(raw)
    ours = messages("perfetto")["Trace"]()
    ours.ParseFromString(raw)
    assert len(theirs.packet) == len(ours.packet) > 50

    def unknown(message):
        from google.protobuf.unknown_fields import UnknownFieldSet

        assert len(UnknownFieldSet(message)) == 0
        for _, value in message.ListFields():
            for one in (value if hasattr(value, "add") else [value]):
                if hasattr(one, "ListFields"):
                    unknown(one)

    unknown(theirs)
    slices = [packet.track_event for packet in theirs.packet
              if packet.track_event.type == perfetto.BEGIN]
    assert {one.name for one in slices} & {text(name)
                                           for name in made_runs.HOSTILE}
    moves = [one for one in slices if "move" in one.categories]
    assert len(moves) == 5 and moves[0].flow_ids == moves[1].flow_ids
    assert moves[3].flow_ids == moves[4].flow_ids != moves[2].flow_ids


def test_what_was_dropped_is_another_story_than_what_comes_after():
    maker = made_runs.Maker()
    for i in range(3):
        maker.put(Kind.MOVE, 1 << 40, 1 << 20, 10, category=model.move(0, 1))
        if i == 1:
            maker.put(Kind.DROPPED, 1 << 40, 1 << 20, category=1)
    trace = messages("perfetto")["Trace"]()
    trace.ParseFromString(bytes_of(maker.finish(), "trace.pftrace"))
    first, second, third = (
        list(packet.track_event.flow_ids) for packet in trace.packet
        if "move" in packet.track_event.categories)
    assert first == second != third


_JSONS = ["speedscope.json", "snapshot.json", "trace.json", "timeline.json"]


def _texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


@pytest.mark.parametrize("name", _JSONS)
def test_hostile_names_are_the_same_names(name):
    run = made_runs.hostile()
    found = set(_texts(json_of(run, name)))
    used = {run.scopes[one] for one in run.events["scope"][
        run.events["kind"] == Kind.ALLOC]}
    parts = {text(part) for scope in used for part in _tree.parts(scope)}
    wanted = parts if name == "speedscope.json" else {text(one)
                                                      for one in used}
    assert wanted <= found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=80),
       st.integers(4, 30))
def test_spans_match_like_brackets_whatever_was_recorded(steps, most):
    maker = made_runs.Maker()
    for opens, scope in steps:
        maker.put(Kind.SCOPE_ENTER if opens else Kind.SCOPE_LEAVE, scope=scope)
    run = maker.finish()
    whole = spans.spans(run, 0)
    assert sum(opens for _, opens, _ in whole) == sum(
        opens for opens, _ in steps)
    few = spans.bounded(run, 0, most)
    assert len(few) <= most
    for found in (whole, few):
        inside = []
        for event, opens, scope in found:
            assert 0 <= event <= len(run.events)
            if opens:
                inside.append(scope)
            else:
                assert inside.pop() == scope
        assert not inside
        assert [one[0] for one in found] == sorted(one[0] for one in found)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=200), st.integers(2, 20))
def test_samples_keep_the_peak_and_the_end(values, most):
    array = made_runs.np.array(values, "<i8")
    moments, found = samples.samples(Curve(0, array), most)
    assert len(found) <= most + 2
    assert [values[i] for i in moments] == found.tolist()
    assert sorted(moments.tolist()) == moments.tolist()
    if any(values):
        assert found.max() == max(values) and found[-1] == values[-1]
