# SPDX-License-Identifier: Apache-2.0
"""Profiles that are exported, of speedscope and pprof: peaks, churn, names."""

import gzip

import made_runs
from exported import RUNS, SOME, bytes_of, json_of
from stratalloc.telemetry.exports.messages import messages
from stratalloc.telemetry.model import Kind


def _profiles(made):
    return {one["name"]: one for one in made["profiles"]}


@SOME
@RUNS
def test_speedscope_adds_up_to_peak_reserved_and_churn(seed, steps):
    run, maker = made_runs.make(seed, steps)
    made = json_of(run, "speedscope.json")
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


@SOME
@RUNS
def test_growth_less_shrinkage_is_the_difference_of_two_moments(seed, steps):
    run, maker = made_runs.make(seed, steps)
    found = _profiles(json_of(run, "speedscope.json"))
    marks = [i for i, event in enumerate(maker.events)
             if event[8] == Kind.MARK]
    last = maker.sums[-1][0] if maker.sums else 0
    before, after = 0, last
    if len(marks) >= 2:
        before, after = (maker.sums[at][0] for at in (marks[0], marks[-1]))
    assert after - before == sum(found["growth cuda:0"]["weights"]) - sum(
        found["shrinkage cuda:0"]["weights"])


def test_speedscope_has_modules_in_parts_below_categories():
    made = json_of(made_runs.story(), "speedscope.json")
    frames = [one["name"] for one in made["shared"]["frames"]]
    stacks = [[frames[i] for i in sample] for sample in
              _profiles(made)["peak holders cuda:0"]["samples"]]
    assert ["cuda:0", "activation", "net", "0", "mlp", "main", "forward",
            "attend"] in stacks


@SOME
@RUNS
def test_pprof_adds_up_to_churn_and_peak(seed, steps):
    run, maker = made_runs.make(seed, steps)
    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(gzip.decompress(bytes_of(run, "profile.pb.gz")))
    sums = [sum(one.value[i] for one in profile.sample) for i in range(4)]
    allocs = [event for event in maker.events if event[8] == Kind.ALLOC]
    assert sums[:2] == [sum(event[3] for event in allocs), len(allocs)]
    assert sums[2] == max((one[0] for one in maker.sums), default=0)
    texts = profile.string_table
    assert [texts[one.type] for one in profile.sample_type] == [
        "alloc_space", "alloc_objects", "inuse_space", "inuse_objects"]


def test_pprof_has_the_call_site_innermost_and_the_scope_around_it():
    profile = messages("pprof")["Profile"]()
    profile.ParseFromString(gzip.decompress(bytes_of(made_runs.story(),
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
    profile.ParseFromString(gzip.decompress(bytes_of(maker.finish(),
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
