# SPDX-License-Identifier: Apache-2.0
"""What each exporter says is what the slow model knows: sums, peaks, names."""

import csv
import gzip
import io
import json
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import formats
import made_runs
import told
from made_runs import MIB
from stratalloc import _tree
from stratalloc.telemetry import identities, import_torch, model
from stratalloc.telemetry.analysis import fit, owners
from stratalloc.telemetry.checks import metrics as checks
from stratalloc.telemetry.exports import (metrics, perfetto, prometheus,
                                          samples, scalars, snapshot, spans)
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.exports.plain_pickler import PlainPickler, Shared
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Curve, Replay

_RUNS = given(st.integers(0, 1 << 30), st.integers(1, 150))
_SOME = settings(max_examples=25, deadline=None)


def _bytes(run, name):
    with tempfile.TemporaryDirectory() as folder:
        return formats.export(run, name, pathlib.Path(folder)).read_bytes()


def _json(run, name):
    return json.loads(_bytes(run, name))


def _profiles(made):
    return {one["name"]: one for one in made["profiles"]}


@_SOME
@_RUNS
def test_speedscope_adds_up_to_peak_reserved_and_churn(seed, steps):
    run, maker = made_runs.make(seed, steps)
    made = _json(run, "speedscope.json")
    found = _profiles(made)
    peak = max((one[0] for one in maker.sums), default=0)
    assert sum(found["peak holders cuda:0"]["weights"]) == peak
    if peak:
        at = [one[0] for one in maker.sums].index(peak)
        assert sum(found["reserved at peak cuda:0"]["weights"]) == (
            maker.sums[at][3])
    allocs = [event for event in maker.events if event[8] == Kind.ALLOC]
    assert sum(found["churn cuda:0"]["weights"]) == sum(
        event[3] for event in allocs)
    # Time Order: the clock ends at what the thread has allocated.
    clock = found.get("allocation clock main")
    if clock:
        assert clock["endValue"] == sum(event[3] for event in allocs)


@_SOME
@_RUNS
def test_growth_less_shrinkage_is_the_difference_of_two_moments(seed, steps):
    run, maker = made_runs.make(seed, steps)
    found = _profiles(_json(run, "speedscope.json"))
    marks = [i for i, event in enumerate(maker.events)
             if event[8] == Kind.MARK]
    last = maker.sums[-1][0] if maker.sums else 0
    before, after = 0, last
    if len(marks) >= 2:
        before, after = (maker.sums[at][0] for at in (marks[0], marks[-1]))
    assert after - before == sum(found["growth cuda:0"]["weights"]) - sum(
        found["shrinkage cuda:0"]["weights"])


def test_speedscope_has_modules_in_parts_below_categories():
    made = _json(made_runs.story(), "speedscope.json")
    frames = [one["name"] for one in made["shared"]["frames"]]
    stacks = [[frames[i] for i in sample] for sample in
              _profiles(made)["peak holders cuda:0"]["samples"]]
    assert ["cuda:0", "activation", "net", "0", "mlp", "main", "forward",
            "attend"] in stacks


@_SOME
@_RUNS
def test_a_snapshot_comes_back_as_the_run_it_was(seed, steps):
    run, maker = made_runs.make(seed, steps, totals=False, sizes=False)
    for name in ("snapshot.pickle", "snapshot.json"):
        back = import_torch.from_bytes(_bytes(run, name))
        assert back.source == "stratalloc"
        one, two = Replay(run, 0), Replay(back, 0)
        for curve in ("allocated", "active", "requested", "reserved"):
            assert getattr(one, curve).last() == getattr(two, curve).last()
            assert getattr(one, curve).most() == getattr(two, curve).most()
        assert _named(run, one.holders()) == _named(back, two.holders())
        assert back.device(0).capacity == run.device(0).capacity
        kinds = [int(kind) for kind in snapshot._ACTIONS]
        assert [list(event)[1:3] for event in run.events
                if event["kind"] in kinds] == [
            list(event)[1:3] for event in back.events if event["kind"] in kinds
            and event["device"] == 0][1:]


def _named(run, holders):
    found = {}
    for one in holders:
        key = (run.scopes[one.scope], one.category,
               tuple((site.file, site.line, site.function)
                     for site in run.stack(one.site)))
        found[key] = found.get(key, 0) + one.bytes
    return found


def test_blocks_of_the_start_are_allocated_first_with_their_category():
    maker = made_runs.Maker()
    at = maker.alloc(5000, 2, 1, 1)
    waits = maker.alloc(6000, 3, 3, 2)
    maker.free(waits, complete=False)
    first = len(maker.events)
    maker.alloc(700, 1)
    trace = import_torch.plain_pickle.loads(_bytes(
        maker.finish(first), "snapshot.pickle"))["device_traces"][0]
    assert [(one["action"], one["addr"], one["category"])
            for one in trace[:4]] == [
        ("snapshot", 0, "unknown"), ("alloc", at, "parameter"),
        ("alloc", waits, "gradient"), ("free_requested", waits, "gradient")]
    assert trace[1]["user_metadata"] == "net.0"
    assert trace[1]["frames"][0]["name"] == "net.0"


def test_what_a_move_made_is_no_allocation_after_a_round_trip():
    maker = made_runs.Maker()
    at = maker.alloc(5000, 2, 1, 1)
    for kind, flags in ((Kind.FREE_REQUESTED, 1), (Kind.FREE_COMPLETED, 1),
                        (Kind.ALLOC, 2)):
        maker.put(kind, at, 5000, 5120, 2, 1, 1, flags=flags)
    run = maker.finish()
    back = import_torch.from_bytes(_bytes(run, "snapshot.pickle"))
    blocks = back.events["kind"] <= Kind.FREE_COMPLETED
    assert back.events["flags"][blocks].tolist() == [0, 1, 1, 2]
    assert {back.scopes[one] for one in back.events["scope"][blocks]} == {
        "net.0"}
    assert [one.bytes for one in Replay(back, 0).churn()] == [5120]


def test_tiers_are_devices_behind_the_last_one():
    made = import_torch.plain_pickle.loads(_bytes(made_runs.story(),
                                                  "snapshot.pickle"))
    assert len(made["device_traces"]) == 3
    came = ["segment_alloc", "alloc"]
    left = ["free_requested", "free_completed", "segment_free"]
    host, disk = ([one["action"] for one in made["device_traces"][tier]]
                  for tier in (1, 2))
    assert host == came + left + came + came + left
    assert disk == came + left  # dropped there
    assert [(one["total_size"], one["device"]) for one in made["segments"]
            if one["device"]] == [(2 << 20, 1)]
    assert all(one["addr"] < 1 << 53 for one in made["device_traces"][1])


def test_a_tier_of_a_snapshot_has_its_name_and_is_not_looked_at_unasked():
    maker = made_runs.Maker()
    maker.alloc(MIB, 1, 1)
    for at in range(0, 8 * MIB, 2 * MIB):
        maker.put(Kind.MOVE, 0x7100_0000_0000 + at, 2 * MIB, 900,
                  category=model.move(0, 1))
    back = import_torch.from_bytes(_bytes(maker.finish(), "snapshot.pickle"))
    assert [(one.index, one.name, one.tier) for one in back.devices] == [
        (0, "card", 0), (1, "host", 1)]
    assert Replay(back, 1).allocated.most() == 8 * MIB  # more than the card's
    assert owners.peak(back).device == 0
    assert fit.fit(back, 1 << 30).device == 0
    assert owners.peak(back, device=1).total == 8 * MIB
    assert not identities.check(back)


@_SOME
@_RUNS
def test_timeline_and_rows_have_the_sums_after_every_event(seed, steps):
    run, maker = made_runs.make(seed, steps)
    kinds = (Kind.ALLOC, Kind.FREE_REQUESTED, Kind.SNAPSHOT, Kind.SCOPE_ENTER,
             Kind.SCOPE_LEAVE)
    made = _json(run, "timeline.json")
    assert [(one["allocated_bytes"], one["reserved_bytes"])
            for one in made["events"]] == [
        (sums[0], sums[3]) for event, sums in zip(maker.events, maker.sums)
        if event[8] in kinds]
    mib = 1 << 20
    assert made["summary"]["peak_allocated_mb"] * mib == max(
        (one[0] for one in maker.sums), default=0)
    assert made["layer_stats"] == _layers(run, maker)
    rows = list(csv.DictReader(io.StringIO(
        _bytes(run, "events.csv").decode())))
    assert [tuple(int(row[name]) for name in ("allocated", "active",
                                              "requested", "reserved"))
            for row in rows] == maker.sums
    assert [row["event"] for row in rows] == [
        Kind(event[8]).name.lower() for event in maker.events]
    assert _parquet(_bytes(run, "events.parquet")) == rows


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
    made = _json(run, "timeline.json")["layer_stats"]
    assert {name: (layer["total_allocations"], layer["total_deallocations"])
            for name, layer in made.items()} == {"net": (1, 1),
                                                 "cache": (1, 1)}


def test_parquet_has_the_rows_of_csv(tmp_path):
    from pyarrow import parquet

    run = made_runs.hostile()
    path = formats.export(run, "events.parquet", tmp_path)
    table = parquet.read_table(path)
    rows = list(csv.DictReader(io.StringIO(
        _bytes(run, "events.csv").decode(), newline="")))
    assert _parquet(path.read_bytes()) == rows
    assert table.schema.metadata[b"dropped_events"] == b"0"


@_SOME
@_RUNS
def test_counters_of_traces_end_and_peak_where_the_run_does(seed, steps):
    run, maker = made_runs.make(seed, steps, tiering=True)
    chrome = {}
    for event in _json(run, "trace.json")["traceEvents"]:
        if event["ph"] == "C":
            chrome.setdefault(event["name"], []).append(event["args"]["bytes"])
    ours = told.perfetto(_bytes(run, "trace.pftrace"))
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

    raw = _bytes(made_runs.hostile(), "trace.pftrace")
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
    trace.ParseFromString(_bytes(maker.finish(), "trace.pftrace"))
    first, second, third = (
        list(packet.track_event.flow_ids) for packet in trace.packet
        if "move" in packet.track_event.categories)
    assert first == second != third


@_SOME
@_RUNS
def test_pprof_adds_up_to_churn_and_peak(seed, steps):
    run, maker = made_runs.make(seed, steps)
    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(gzip.decompress(_bytes(run, "profile.pb.gz")))
    sums = [sum(one.value[i] for one in profile.sample) for i in range(4)]
    allocs = [event for event in maker.events if event[8] == Kind.ALLOC]
    assert sums[:2] == [sum(event[3] for event in allocs), len(allocs)]
    assert sums[2] == max((one[0] for one in maker.sums), default=0)
    texts = profile.string_table
    assert [texts[one.type] for one in profile.sample_type] == [
        "alloc_space", "alloc_objects", "inuse_space", "inuse_objects"]


def test_pprof_has_the_call_site_innermost_and_the_scope_around_it():
    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(gzip.decompress(_bytes(made_runs.story(),
                                                   "profile.pb.gz")))
    functions = {one.id: profile.string_table[one.name]
                 for one in profile.function}
    places = {one.id: functions[one.line[0].function_id]
              for one in profile.location}
    stacks = [[places[one] for one in sample.location_id]
              for sample in profile.sample]
    assert ["attend", "forward", "main", "net.0.mlp", "net.0", "net"] in stacks


def test_pprof_keeps_layers_apart_whose_last_names_are_alike():
    maker = made_runs.Maker(("net.0.mlp", "net.1.mlp", "net.1/mlp."))
    for scope in (1, 2, 3):
        maker.alloc(512 * scope, scope)
    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(gzip.decompress(_bytes(maker.finish(),
                                                   "profile.pb.gz")))
    functions = {one.id: (profile.string_table[one.name], one.filename)
                 for one in profile.function}
    places = {one.id: functions[one.line[0].function_id]
              for one in profile.location}
    held = {}
    for sample in profile.sample:
        for name, _ in {places[one] for one in sample.location_id}:
            held[name] = held.get(name, 0) + sample.value[2]
    assert [held[name] for name in ("net.0.mlp", "net.1.mlp", "net.1/mlp.",
                                    "net")] == [512, 1024, 1536, 3072]


@_SOME
@_RUNS
def test_metrics_are_those_of_the_end(seed, steps):
    run, maker = made_runs.make(seed, steps, tiering=True)
    last = maker.sums[-1] if maker.sums else (0, 0, 0, 0)
    for file, read in told.METRICS.items():
        found = read(_bytes(run, file))
        found = {name: [value for _, value in samples]
                 for name, samples in found.items()}
        assert [found[f"stratalloc_memory_{one}_bytes"] for one in (
            "allocated", "active", "requested", "reserved")] == [
            [value] for value in last]
        assert sum(found["stratalloc_memory_category_bytes"]) == last[0]
        assert found["stratalloc_trace_events_total"] == [len(run.events)]
        assert found["stratalloc_allocations_total"] == [sum(
            event[8] == Kind.ALLOC for event in maker.events)]
        assert found["stratalloc_allocated_bytes_total"] == [sum(
            event[3] for event in maker.events if event[8] == Kind.ALLOC)]
        assert found["stratalloc_memory_largest_free_block_bytes"] == [max(
            (block.size for one in maker.snapshot() for block in one.blocks
             if block.state == "inactive"), default=0)]
        shares = found["stratalloc_memory_fragmentation_ratio"]
        if last[3]:
            free = last[3] - last[1]
            assert sum(shares[1:3]) * last[3] == pytest.approx(free)


def test_tiers_are_labels_of_the_handles_there():
    family = {one.name: one for one in metrics.families(made_runs.story())}[
        "tier_bytes"]
    assert dict(family.samples)["0", "host"] == 2 << 20


def test_moves_are_told_by_their_way():
    run = made_runs.story()
    told_of = {one.name: dict(one.samples) for one in metrics.families(run)}
    moves = run.events[run.events["kind"] == Kind.MOVE]
    sums = {}
    for one in moves:
        way = "0", *(model.TIERS[end] for end in model.ends(one["category"]))
        sums.setdefault(way, []).append(one)
    assert sums
    for name, column, unit in (("tier_moved_bytes", "bytes", 1),
                               ("tier_move_seconds", "aux", 10 ** 9)):
        assert told_of[name] == {
            way: pytest.approx(sum(int(one[column]) for one in some) / unit)
            for way, some in sums.items()}
        assert all(told_of[name].values())
    assert told_of["tier_moves"] == {way: len(some)
                                     for way, some in sums.items()}


def test_seconds_of_moves_count_overlapping_moves_once():
    run = made_runs.story()
    first = np.flatnonzero(run.events["kind"] == Kind.MOVE)[:1]
    way = "0", *(model.TIERS[int(end)] for end in model.ends(
        run.events["category"][first[0]]))
    others = run.events[run.events["kind"] != Kind.MOVE]
    batch = np.repeat(run.events[first], 3)
    batch["time"] = others["time"][-1] + np.array([500, 600, 900])
    batch["aux"] = 400, 500, 100  # 100 to 600, then 800 to 900
    run.events = np.concatenate([others, batch])
    run.duration = int(run.events["time"][-1])
    told_of = {one.name: dict(one.samples) for one in metrics.families(run)}
    assert told_of["tier_move_seconds"] == {way: 600e-9}
    assert told_of["tier_moves"] == {way: 3}


def test_a_rank_is_a_label_of_every_sample():
    run = made_runs.story()
    run.about["rank"] = 3
    for one in metrics.families(run, modules=1):
        assert one.labels[-1] == "rank"
        assert {labels[-1] for labels, _ in one.samples} == {"3"}
    for raw in (_bytes(run, "metrics.prom"), _bytes(run, "metrics.om")):
        samples = [line for line in raw.decode().splitlines()
                   if line[0] != "#"]
        assert samples and all('rank="3"' in line for line in samples)
    made = _json(run, "otel.json")
    for one in made["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
        for point in one["data"]["data_points"]:
            assert point["attributes"]["stratalloc.rank"] == "3"


def test_what_the_rings_had_no_room_for_is_told():
    run = made_runs.story()
    run.names_lost, run.stacks_lost = 7, 9
    found = told.METRICS["metrics.prom"](_bytes(run, "metrics.prom"))
    assert found["stratalloc_trace_names_lost_total"] == [((), 7)]
    assert found["stratalloc_trace_stacks_lost_total"] == [((), 9)]


def test_modules_are_metrics_when_asked_for_and_add_up():
    run, maker = made_runs.make(5, 200)
    family = {one.name: one for one in metrics.families(run, modules=2)}[
        "module_allocated_bytes"]
    assert len(family.samples) == 3 and family.samples[-1][0][2] == "(other)"
    assert sum(value for _, value in family.samples) == maker.sums[-1][0]
    assert "module_allocated_bytes" not in {
        one.name for one in metrics.families(run)}


@pytest.mark.parametrize("names, found", [
    ({"net.0.mlp": "(other)"}, {"(other)", "net"}),
    ({"net.0.mlp": "a\udc80", "net": "a\\udc80"}, {"(other)", "a\\udc80"})])
def test_modules_whose_names_are_told_alike_are_one(names, found, tmp_path):
    """A scope that is called as the rest is; two that are the same as text."""
    run, maker = made_runs.make(2, 200)
    run.scopes = [names.get(one, one) for one in run.scopes]
    family = {one.name: one for one in metrics.families(run, modules=2)}[
        "module_allocated_bytes"]
    assert sorted(labels[2] for labels, _ in family.samples) == sorted(found)
    assert sum(value for _, value in family.samples) == maker.sums[-1][0]
    path = tmp_path / "metrics"
    prometheus.write(run, path, modules=2)
    assert checks.check(path) == []
    prometheus.write_openmetrics(run, path, modules=2)
    assert checks.check_openmetrics(path) == []


def test_opentelemetry_has_the_names_of_its_conventions():
    run = made_runs.story()
    made = _json(run, "otel.json")
    found = {one["name"]: one for one in
             made["resource_metrics"][0]["scope_metrics"][0]["metrics"]}
    usage = found["hw.gpu.memory.usage"]
    assert usage["unit"] == "By"
    point = usage["data"]["data_points"][0]
    assert point["value"] == Replay(run, 0).reserved.last()
    assert point["attributes"]["hw.id"] == "0"
    assert point["attributes"]["hw.type"] == "gpu"


def test_scalars_have_the_peaks_of_their_step_and_torchtitans_tags():
    run = made_runs.story()
    found = []
    scalars.send(run, lambda *one: found.append(one))
    marks = [i for i, event in enumerate(run.events)
             if event["kind"] == Kind.MARK]
    after = Replay(run, 0).active.after
    gib = 1 << 30
    assert [value for tag, value, _ in found
            if tag == "memory/max_active(GiB)"] == [
        after[:marks[0] + 1].max() / gib,
        after[marks[0]:marks[1] + 1].max() / gib, after[marks[1]:].max() / gib]
    tags = {tag for tag, _, _ in found}
    assert {"memory/max_active(%)", "memory/max_reserved(GiB)",
            "memory/max_reserved(%)", "memory/num_alloc_retries",
            "memory/num_ooms", "memory/parameter(GiB)",
            "memory/tier_host(GiB)", "memory/fragmentation(%)"} <= tags
    assert sum(value for tag, value, _ in found
               if tag == "memory/num_ooms") == 1
    # The run's, and no event says in which step.
    assert [(step, value) for tag, value, step in found
            if tag == "memory/num_alloc_retries"] == [(len(marks), 3)]


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
    found = set(_texts(_json(run, name)))
    used = {run.scopes[one] for one in run.events["scope"][
        run.events["kind"] == Kind.ALLOC]}
    parts = {text(part) for scope in used for part in _tree.parts(scope)}
    wanted = parts if name == "speedscope.json" else {text(one)
                                                      for one in used}
    assert wanted <= found


@pytest.mark.parametrize("name", sorted(made_runs.HOSTILE, key=len))
def test_a_hostile_name_is_one_label_of_prometheus(name):
    from prometheus_client import parser
    from stratalloc.telemetry.exports import prometheus

    maker = made_runs.Maker((name,))
    maker.alloc(5000, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x"
        prometheus.write(maker.finish(), path, modules=5)
        found = [sample.labels["module"] for family in
                 parser.text_string_to_metric_families(
                     path.read_bytes().decode())
                 for sample in family.samples if "module" in sample.labels]
    assert found == [text(name)]


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


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda some: st.lists(some, max_size=4)
    | st.dictionaries(st.text(max_size=3), some, max_size=4)))
def test_our_pickler_writes_what_pickle_reads(value):
    import pickle

    out = io.BytesIO()
    shared = Shared([{"a": 1}])
    PlainPickler(out).dump([value, iter([1, 2]), shared, shared, (0, 7)])
    one, two, three, four, five = pickle.loads(out.getvalue())
    assert one == value and two == [1, 2] and five == (0, 7)
    assert three == [{"a": 1}] and three is four
    assert import_torch.plain_pickle.loads(out.getvalue())[0] == value
