# SPDX-License-Identifier: Apache-2.0
"""What a run tells when it is asked, against the slow model."""

import json
import re
import xml.etree.ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import made_runs
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis import curves, owners
from stratalloc.telemetry.analysis.lines import line
from stratalloc.telemetry.analysis.summary import summary
from stratalloc.telemetry.model import Kind

_SOME = settings(max_examples=40, deadline=None)
_RUNS = given(st.integers(0, 1 << 30), st.integers(1, 200))


@_SOME
@_RUNS
def test_a_tree_has_the_models_holders(seed, steps):
    run, maker = made_runs.make(seed, steps)
    found = owners.tree(run, at="end")
    wanted = {}
    for (scope, category, _), size in maker.holders().items():
        key = (run.scopes[scope], model.CATEGORIES[category])
        wanted[key] = wanted.get(key, 0) + size
    assert {(row.name, row.category): row.bytes
            for row in found.rows} == wanted
    assert found.total == sum(row.bytes for row in found.rows)
    for by in (*owners.BY, "module"):
        assert sum(row.bytes for row in owners.peak(run, by=by).rows) == max(
            (one[0] for one in maker.sums), default=0)


@_SOME
@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_difference_adds_up_and_turns_around(one, two):
    (a, _), (b, _) = made_runs.make(one, 100), made_runs.make(two, 100)
    there, back = owners.diff(a, b), owners.diff(b, a)
    assert there.total == owners.peak(b).total - owners.peak(a).total
    assert {(row.name, row.category): -row.bytes for row in back.rows} == {
        (row.name, row.category): row.bytes for row in there.rows}
    assert owners.diff(a, a).rows == []


def test_two_moments_of_one_run_are_compared():
    maker = made_runs.Maker()
    maker.alloc(512, 1)
    first = len(maker.events) - 1
    maker.alloc(5120, 2, 1)
    run = maker.finish()
    found = owners.diff((run, first), (run, "end"))
    assert [(row.name, row.category, row.bytes, row.count)
            for row in found.rows] == [("net.0", "parameter", 5120, 1)]
    assert "net" in str(found) and json.dumps(found.to_dict())


def test_the_line_of_a_stack_is_the_users():
    run = model.Run()
    stack = [("memory_snapshot.cpp", 0), ("/usr/lib/python3.11/ast.py", 3),
             ("/x/site-packages/torch/nn/modules/linear.py", 9),
             ("/home/me/net.py", 12), ("/home/me/train.py", 40)]
    for i, (file, number) in enumerate(stack):
        run.sites.append(model.Site(file, number, "f",
                                    i + 2 if i + 1 < len(stack) else 0))
    assert line(run, 1) == "/home/me/net.py:12"
    assert line(run, 0) == "(not known)"
    run.sites[4:] = [model.Site("??", 0, "unwind")]
    assert line(run, 1) == "/usr/lib/python3.11/ast.py:3"
    run.source = "torch"
    assert line(run, 4) == "(not known)"


def test_a_run_is_told_in_a_line():
    run = made_runs.make(3, 2000)[0]
    assert len(repr(run)) < 200 and f"{len(run.events)} events" in repr(run)


def _loop(marks, leak, steps=30):
    maker = made_runs.Maker()
    for step in range(steps):
        if not marks:
            maker.enter(1)
        some = maker.alloc(100_000, 2)
        if leak:
            maker.alloc(700, 3, 5, 1)
        maker.free(some)
        if marks:
            maker.put(Kind.MARK, scope=1)
        else:
            maker.leave()
        del step
    return maker.finish()


@pytest.mark.parametrize("marks", [True, False])
def test_what_grows_with_every_step_is_told_and_nothing_else(marks):
    found = owners.leaks(_loop(marks, True))
    assert [(row.name, row.per_step) for row in found.rows] == [
        ("net.0.mlp", 1024)]
    assert "net.0.mlp" in str(found)
    assert not owners.leaks(_loop(marks, False))
    assert [row.name for row in owners.leaks(_loop(marks, True),
                                             by="site").rows] == [
        "/p/train.py:10"]


def test_leak_of_many_steps_is_told_for_each_of_them():
    found = owners.leaks(_loop(True, True, 600))
    assert found.steps == 600
    assert [row.per_step for row in found.rows] == [pytest.approx(1024, abs=20)]


def test_a_step_of_a_model_and_its_optimizer_is_one():
    maker = made_runs.Maker()
    for _ in range(30):
        for outermost in (2, 1, 3):
            maker.enter(outermost)
            if outermost == 1:
                maker.alloc(700, 3, 5, 1)
            maker.leave()
        maker.enter(2)
        maker.leave()  # twice a step, as by accumulation
    found = owners.leaks(maker.finish())
    assert found.steps == 60 and "from one net.0 to the next" in str(found)
    assert [row.per_step for row in found.rows] == [512]
    maker = made_runs.Maker(["net", "Optimizer.SGD", "held"])
    for _ in range(40):  # its layers are made
        maker.put(Kind.SCOPE_ENTER, scope=1, category=1)
        maker.put(Kind.SCOPE_LEAVE, scope=1, category=1)
    for _ in range(20):
        for scope in (1, 1, 2):
            maker.enter(scope)
            maker.leave()
        maker.alloc(700, 3, 5, 1)
    run = maker.finish()
    found = owners.leaks(run)
    assert found.steps == 20
    assert "from one Optimizer.SGD to the next" in str(found)
    assert [row.per_step for row in found.rows] == [1024]
    run.scopes[2] = "another"
    assert owners.leaks(run).steps == 40  # forward calls, twice a step
    quiet = owners.leaks(_loop(False, True))
    assert quiet.steps == 30 and quiet.rows[0].per_step == 1024


@_SOME
@_RUNS
def test_a_summary_has_the_models_sums_and_is_json(seed, steps):
    run, maker = made_runs.make(seed, steps)
    found = json.loads(json.dumps(summary(run).to_dict()))
    assert found["violations"] == []
    one = found["devices"][0]
    for i, name in enumerate(("allocated", "active", "requested", "reserved")):
        column = [sums[i] for sums in maker.sums] or [0]
        assert one[name] == {"start": 0, "peak": max(column),
                             "end": column[-1]}
    parts = one["at_peak"]
    assert parts["total"] == sum(parts[name] for name in (
        "allocated", "pending", "releasable", "stranded"))


def test_a_summary_reads_as_a_page():
    run = made_runs.hostile()
    run.dropped, run.torn = 5, True
    text = summary(run).text()
    assert "5 events are missing" in text and "reserved" in text
    assert "\x00" not in text
    said = summary(made_runs.story()).text()
    for one in ("1 request was refused", "moved: 5 MiB device to host",
                "below the device: 2 MiB on host", "1 time a thread waited"):
        assert one in " ".join(said.split()), said
    assert "no steps are" in str(owners.leaks(model.Run()))
    assert summary(model.Run()).text()


@pytest.mark.parametrize("call", [
    lambda run: owners.tree(run, at="noon"), lambda run: owners.tree(run, at=99),
    lambda run: owners.tree(run, by="colour"),
    lambda run: owners.tree(run, device=7)])
def test_what_cannot_be_asked_is_an_error(call):
    with pytest.raises(ValueError, match="stratalloc: .*(use|it has)"):
        call(made_runs.story())


@_SOME
@_RUNS
def test_a_picture_has_the_models_sums(seed, steps):
    _, maker = made_runs.make(seed, steps)
    first = len(maker.sums) // 2  # what was there before is there, too
    run, maker = made_runs.make(seed, steps, first)
    wanted = maker.sums[max(0, first - 1):]
    areas = curves.Curves(run, 0).areas()
    sums = [sum(each) for each in zip(*areas.parts.values())]
    assert max(sums, default=0) == max((one[0] for one in wanted), default=0)
    assert sums[:1] == [one[0] for one in wanted[:1] if first and sums]
    at_end = {}
    for (_, category, _), size in maker.holders().items():
        name = model.CATEGORIES[category]
        at_end[name] = at_end.get(name, 0) + size
    assert {name: numbers[-1] for name, numbers in areas.parts.items()
            if numbers[-1]} == at_end
    assert max(areas.lines.get("reserved", [0])) == max(
        (one[3] for one in wanted), default=0)
    assert areas.times == sorted(areas.times)


def test_a_picture_of_a_long_run_has_its_peak_and_its_end():
    run = made_runs.many(20000, marks=5)
    areas = curves.Curves(run, 0).areas()
    assert len(areas.times) < 600 and len(areas.marks) == 5
    walked = replay.Replay(run, 0)
    sums = [sum(each) for each in zip(*areas.parts.values())]
    assert max(sums) == walked.allocated.most()
    assert sums[-1] == walked.allocated.last()
    assert max(areas.lines["reserved"]) == walked.reserved.most()
    assert len(areas.svg()) < 100_000


def test_a_page_has_a_picture_of_each_device_whatever_names_are():
    run = made_runs.devices()
    pictures = re.findall("<svg.*?</svg>", summary(run)._repr_html_())
    titles = [xml.etree.ElementTree.fromstring(one)[0].text
              for one in pictures]
    assert titles == [f"allocated on device {one} by category, over time"
                      for one in replay.devices(run)]
    for one in re.findall("<svg.*?</svg>",
                          summary(made_runs.hostile())._repr_html_()):
        root = xml.etree.ElementTree.fromstring(one)
        assert not {element.tag for element in root.iter()} & {
            "{http://www.w3.org/2000/svg}script"}
    assert "svg" not in summary(run).text() + json.dumps(
        summary(run).to_dict())
