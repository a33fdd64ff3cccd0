# SPDX-License-Identifier: Apache-2.0
"""Metrics and scalars that are exported say what the slow model knows."""

import pathlib
import tempfile

import numpy as np
import pytest

import made_runs
import told
from exported import RUNS, SOME, bytes_of, json_of
from stratalloc.telemetry import model
from stratalloc.telemetry.checks import metrics as checks
from stratalloc.telemetry.exports import metrics, prometheus, scalars
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Replay


@SOME
@RUNS
def test_metrics_are_those_of_the_end(seed, steps):
    run, maker = made_runs.make(seed, steps, tiering=True)
    last = maker.sums[-1] if maker.sums else (0, 0, 0, 0)
    for file, read in told.METRICS.items():
        found = read(bytes_of(run, file))
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
    for raw in (bytes_of(run, "metrics.prom"), bytes_of(run, "metrics.om")):
        samples = [line for line in raw.decode().splitlines()
                   if line[0] != "#"]
        assert samples and all('rank="3"' in line for line in samples)
    made = json_of(run, "otel.json")
    for one in made["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
        for point in one["data"]["data_points"]:
            assert point["attributes"]["stratalloc.rank"] == "3"


def test_what_the_rings_had_no_room_for_is_told():
    run = made_runs.story()
    run.names_lost, run.stacks_lost = 7, 9
    found = told.METRICS["metrics.prom"](bytes_of(run, "metrics.prom"))
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
    made = json_of(run, "otel.json")
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
