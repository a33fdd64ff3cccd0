# SPDX-License-Identifier: Apache-2.0
"""History tells the same of the same programs as both of native's kinds."""

import json

import pytest

from tests.system.differential import events, kinds, program

@pytest.fixture(scope="module", name="last", params=[
    12, pytest.param(60, marks=pytest.mark.long)])
def _last(request):
    """The last of the seeds."""
    return request.param


@pytest.fixture(scope="module")
def told(tmp_path_factory, last):
    """kind: seed: what history told."""
    folder = tmp_path_factory.mktemp("events")
    result = {}
    for kind in kinds.KINDS:
        output = folder / f"{kind}.json"
        kinds.run(kind, "tests.system.differential.events_worker", f"1-{last}",
                  output)
        result[kind] = json.loads(output.read_text())
    return result


def test_what_is_told_makes_sense(told):
    for kind, programs in told.items():
        for seed, each in programs.items():
            wrong = each["dirty"] or events.inconsistent(
                each, program.DEVICE_BYTES
            )
            assert not wrong, f"{kind}, seed {seed}: {wrong}"


@pytest.mark.parametrize("kind", ["native", "expandable"])
def test_ours_tells_what_native_tells(told, last, kind):
    assert len(told["ours"]) == last
    for seed, ours in told["ours"].items():
        different = events.difference(told[kind][seed], ours)
        assert different is None, f"seed {seed}, {different}"


def test_everything_that_can_be_told_was(told):
    kinds = {
        event["action"]
        for programs in told.values()
        for each in programs.values()
        for event in each["events"]
    }
    assert kinds == {
        *events.BLOCKS, *events.COMES, *events.GOES, "oom", "snapshot",
    }  # fmt: skip


def changed(each, action, **changes):
    """A copy in which the last event of an action is another, or gone."""
    copy = {**each, "events": list(each["events"])}
    for i in reversed(range(len(copy["events"]))):
        if copy["events"][i]["action"] == action:
            if changes:
                copy["events"][i] = {**copy["events"][i], **changes}
            else:
                del copy["events"][i]
            return copy
    raise AssertionError(f"no {action}")


@pytest.mark.parametrize("action, changes", [
    ("alloc", {"size": 1}),
    ("alloc", {"addr": 512}),
    ("alloc", {"frames": []}),
    ("alloc", {"user_metadata": ""}),
    ("alloc", {"stream": 77}),
    ("alloc", {"time_us": 0}),
    ("free_completed", {}),
    ("free_requested", {}),
    ("segment_map", {}),
    ("segment_unmap", {}),
    ("oom", {"size": 1}),
    ("oom", {"device_free": 0}),
    ("snapshot", {"size": 1}),
])  # fmt: skip
def test_a_wrong_event_is_noticed(told, action, changes):
    noticed = 0
    for seed, ours in told["ours"].items():
        actions = [event["action"] for event in ours["events"]]
        if actions.count("oom") < 2:
            continue
        wrong = changed(ours, action, **changes)
        noticed += bool(
            events.difference(told["native"][seed], wrong)
            or events.inconsistent(wrong, program.DEVICE_BYTES)
        )
        if noticed:
            return
    raise AssertionError("nobody noticed")
