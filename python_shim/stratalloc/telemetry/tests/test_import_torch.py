# SPDX-License-Identifier: Apache-2.0
"""Torch's snapshots as Runs; and files that nobody should open."""

import copy
import json
import os
import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_shapes
from stratalloc.telemetry import identities, import_torch, plain_pickle
from stratalloc.telemetry.errors import SnapshotError
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Replay

MIB = 1 << 20


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, "json"])
def test_a_snapshot_is_read_as_what_the_allocator_did(tmp_path, protocol):
    shape = torch_shapes.snapshot()
    path = tmp_path / "snapshot"
    path.write_bytes(json.dumps(shape).encode() if protocol == "json"
                     else pickle.dumps(shape, protocol))
    run = import_torch.read(path)
    assert run.source == "torch" and run.devices[0].start is None
    assert identities.check(run) == []
    assert run.started == 1_700_000_000_000_001_000
    assert [Kind(one).name for one in run.events["kind"]] == [
        "ALLOC", "ALLOC", "SCOPE_ENTER", "FREE_REQUESTED", "FREE_COMPLETED",
        "SEGMENT_MAP", "SEGMENT_MAP", "ALLOC", "OOM", "SCOPE_LEAVE",
        "FREE_REQUESTED", "SNAPSHOT"]
    replay = Replay(run, 0)
    assert replay.reserved.base == 20 * MIB
    assert replay.reserved.last() == 26 * MIB
    # The block that was there before, and those whose size the end knows.
    assert replay.allocated.base == 4 * MIB
    assert replay.allocated.most() == (4 + 2 + 6) * MIB
    assert replay.allocated.last() == 6 * MIB
    assert replay.active.last() == 12 * MIB


def test_frames_become_sites_that_share_their_callers():
    run = import_torch.from_snapshot(torch_shapes.snapshot())
    assert len(run.sites) == 1 + 4  # two lines of one caller of one caller
    stack = run.stack(int(run.events["site"][0]))
    assert [(one.file, one.line, one.function) for one in stack] == [
        ("/p/net.py", 12, "forward"), ("/p/train.py", 40, "step"),
        ("/p/train.py", 99, "<module>")]


def test_labels_and_annotations_become_scopes():
    run = import_torch.from_snapshot(torch_shapes.snapshot())
    assert run.scopes == ["(no scope)", "warm up", "## forward ##"]
    assert run.events["scope"][0] == 1
    entered = run.events[run.events["kind"] == Kind.SCOPE_ENTER]
    assert entered["scope"].tolist() == [2]
    assert run.threads[entered["thread"][0]] == "annotations"


def test_annotations_that_cross_are_on_two_threads():
    shape = torch_shapes.snapshot()
    shape["external_annotations"] = [
        {"device": 0, "name": name, "stage": stage, "time_us": time}
        for time, (name, stage) in enumerate([
            ("a", "START"), ("b", "START"), ("a", "END"), ("b", "END")])]
    run = import_torch.from_snapshot(shape)
    assert identities.check(run) == []
    notes = run.events[(run.events["kind"] == Kind.SCOPE_ENTER)
                       | (run.events["kind"] == Kind.SCOPE_LEAVE)]
    assert [(run.scopes[one["scope"]], run.threads[one["thread"]])
            for one in notes] == [
        ("a", "annotations"), ("b", "annotations 2"),
        ("a", "annotations"), ("b", "annotations 2")]
    assert not (run.events["kind"] == Kind.MARK).any()


def test_a_list_of_segments_alone_is_a_snapshot_too():
    shape = torch_shapes.snapshot()
    run = import_torch.from_bytes(pickle.dumps(shape["segments"], 4))
    assert Replay(run, 0).reserved.base == 26 * MIB


def test_what_old_torch_left_out_is_not_missed():
    shape = torch_shapes.snapshot()
    for event in shape["device_traces"][0]:
        for key in ("time_us", "compile_context", "user_metadata", "pool_id"):
            del event[key]
    for segment in shape["segments"]:
        for key in ("is_expandable", "segment_pool_id", "device"):
            del segment[key]
        for block in segment["blocks"]:
            del block["address"]
            block["history"] = [{"real_size": block.pop("requested_size"),
                                 "addr": 0, "frames": []}]
    shape["external_annotations"] = []
    run = import_torch.from_snapshot(shape)
    assert [one for one in identities.check(run)] == []
    assert run.devices[0].end[0].blocks[1].requested == 2 * MIB - 7


class _Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)


def _bomb(count):
    """Lists of one list, `count` times each."""
    inner = [{"action": "alloc", "addr": 1, "size": 1}] * count
    return pickle.dumps({"segments": [], "device_traces": [inner] * 200}, 4)


def _labels(count):
    """Labels that are dicts of long texts, of which each is there once."""
    long = ["x" * 1000 + str(i) for i in range(64)]
    return pickle.dumps({"device_traces": [[
        {"action": "alloc", "addr": i, "size": 1, "user_metadata": {
            i: i, **dict(enumerate(long[:15]))}} for i in range(count)]]}, 4)


_GOOD = pickle.dumps(torch_shapes.snapshot(), 4)
_HOSTILE = {
    "empty": b"",
    "a text": b"hello",
    "a picture": b"\x89PNG\r\n",
    "runs": pickle.dumps({"segments": [_Runs()]}, 4),
    "runs, protocol 0": pickle.dumps({"segments": [_Runs()]}, 0),
    "global": b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR.",
    "extension": b"\x80\x04\x82\x01.",
    "persistent": b"\x80\x04X\x01\x00\x00\x00aQ.",
    "bytes": pickle.dumps({"segments": b"x"}, 4),
    "a set": pickle.dumps({"segments": {1}}, 4),
    "an enum": pickle.dumps({"segments": Kind.ALLOC}, 4),
    "a large memo": b"\x80\x04]r\xff\xff\xff\x7f.",
    "a long text": b"\x80\x04X\xff\xff\xff\x7fabc.",
    "a long frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
    "a text cut off": b"\x80\x04\x8c\xffabc",
    "a number cut off": b"\x80\x04J\x01",
    "a long number": b"\x80\x04\x8b\xff\xff\xff\x7f\x01.",
    "cut off": _GOOD[:len(_GOOD) // 2],
    "without an end": _GOOD[:-1],
    "no stack": b"\x80\x04u.",
    "no memo": b"\x80\x04h\x07.",
    "nothing but lists": b"\x80\x04" + b"]" * 1_000_000 + b".",
    "events over and over": _bomb(100_000),
    "labels over and over": _labels(20_000),
    "deep json": b"[" * 1_000_000,
    "json cut off": json.dumps(torch_shapes.snapshot()).encode()[:500],
    "json of nothing": b"[]{}",
    "json of a number": b"[1]",
    "a dict of something else": pickle.dumps({"weights": []}, 4),
    "json of no number": b'{"segments":[],"allocator_settings":{"a":NaN}}',
    "json of a number beyond":
        b'{"segments":[],"allocator_settings":{"a":1e999}}',
    "events beyond 64 bits": pickle.dumps({"segments": [], "device_traces": [[
        {"action": "alloc", "addr": i << 20, "size": (1 << 62) - 1}
        for i in range(4)]]}, 4),
    "segments beyond 64 bits": pickle.dumps({"segments": [
        {"address": i << 20, "total_size": 1 << 61, "device": i}
        for i in range(4)]}, 4),
    "blocks beyond 64 bits": pickle.dumps({"segments": [
        {"address": i << 20, "total_size": 0, "blocks": [
            {"size": 1 << 61, "state": "inactive"}]} for i in range(4)]}, 4),
    "a long json number": b'{"segments":[{"address":' + b"9" * 100_000 + b"}]}",
}


# What the message says; "cut off|damaged" where both are right.
_SAYS = {
    "runs": "could run code", "global": "could run code",
    "extension": "could run code", "persistent": "could run code",
    "an enum": "could run code", "a large memo": "more memory than",
    "nothing but lists": "more lists and dicts", "empty": "is empty",
    "events over and over": "over and over",
    "labels over and over": "longer than its size", "cut off": "cut off",
    "without an end": "cut off", "a long text": "cut off",
    "json of no number": "NaN is no finite number",
    "json of a number beyond": "1e999 is no finite number",
    "events beyond 64 bits": "add up to more",
    "segments beyond 64 bits": "add up to more",
    "blocks beyond 64 bits": "add up to more",
    "json of a number": r"segments\[0\]", "deep json": "no JSON",
    "a dict of something else": "neither"}


@pytest.mark.parametrize("name", sorted(_HOSTILE))
def test_a_hostile_file_is_an_error_that_says_why(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(_HOSTILE[name])
    tracemalloc.start()
    with pytest.raises(SnapshotError, match=_SAYS.get(name)) as error:
        import_torch.read(path)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(str(error.value).replace(str(path), "")) < 400
    assert not (tmp_path / "ran").exists()
    assert used < 40 * max(len(_HOSTILE[name]), 100_000)


def test_a_long_name_that_is_said_over_and_over_is_kept_once():
    long = "x" * 30_000
    raw = pickle.dumps({"segments": [], "device_traces": [[
        {"action": "alloc", "addr": i, "size": 1, "frames": [
            {"filename": long, "line": i, "name": long}]}
        for i in range(20_000)]]}, 4)
    tracemalloc.start()
    run = import_torch.from_bytes(raw)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.sites) == 20_001
    assert used < 40 * len(raw)


def test_a_file_beyond_the_limit_is_not_read(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(_GOOD)
    with pytest.raises(SnapshotError, match="max_entries"):
        import_torch.read(path, most_bytes=len(_GOOD) - 1)
    import_torch.read(path, most_bytes=len(_GOOD))


_WRONG = [
    (("segments",), 3), (("segments",), [3]), (("device_traces",), {}),
    (("device_traces",), [[]] * 300), (("device_traces", 0), 3),
    (("device_traces", 0, 0), None), (("device_traces", 0, 0, "action"), 3),
    (("device_traces", 0, 0, "addr"), -1), (("device_traces", 0, 0, "size"),
                                            "x"),
    (("device_traces", 0, 0, "size"), 1 << 63),
    (("device_traces", 0, 0, "time_us"), 1.5),
    (("device_traces", 0, 0, "time_us"), 1 << 60),
    (("segments", 0, "address"), None), (("segments", 0, "device"), 999),
    (("segments", 0, "blocks"), 1), (("segments", 0, "blocks", 0), 1),
    (("segments", 0, "blocks", 0, "state"), "sleeping"),
    (("segments", 0, "blocks", 0, "state"), ["x"]),
    (("segments", 0, "blocks", 0, "size"), -5),
    (("external_annotations",), 5), (("external_annotations", 0), 5),
    (("external_annotations", 0, "device"), "x"),
]


@pytest.mark.parametrize("path, value", _WRONG, ids=str)
def test_a_field_that_cannot_be_is_named(path, value):
    shape = copy.deepcopy(torch_shapes.snapshot())
    place = shape
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SnapshotError) as error:
        import_torch.from_snapshot(shape)
    assert str(path[0]) in str(error.value) or "devices" in str(error.value)


def test_settings_have_numbers_of_every_format():
    shape = torch_shapes.snapshot()
    shape["allocator_settings"] = {
        "nan": float("nan"), "inf": float("-inf"), "large": 1 << 62, "a": 1.5,
        3: "x", "b": "y"}
    for value in (shape, pickle.loads(pickle.dumps(shape))):
        assert import_torch.from_snapshot(value).settings == {
            "a": 1.5, "b": "y"}


def test_a_label_whose_key_is_deep_is_text():
    key = ()
    for _ in range(700):
        key = (key,)
    shape = torch_shapes.snapshot()
    shape["device_traces"][0][0]["user_metadata"] = {key: 1}
    shape["allocator_settings"] = {key: 1}
    run = import_torch.from_snapshot(shape)
    assert run.scopes[1] == "…=1" and run.settings == {}


_ODD = [(("device_traces", 0, 0, "frames"), value)
        for value in (None, 3, [3], [{}], [{"filename": 3, "line": "x"}],
                      [{"filename": "a" * 100_000, "line": -1, "name": None}])]
_ODD += [(("device_traces", 0, 0, key), value)
         for key in ("user_metadata", "compile_context", "category", "pool_id",
                     "stream")
         for value in (None, 3, [[]], {"a": {"b": []}}, "x" * 100_000, -1)]
_ODD += [(("device_traces", 0, 0, "action"), "frobnicate"),
         (("allocator_settings",), 3), (("stratalloc",), [1]),
         (("stratalloc",), {"devices": [1, {"index": 0, "capacity": "x"}]})]


@pytest.mark.parametrize("path, value", _ODD, ids=lambda one: str(one)[:40])
def test_what_is_only_told_to_people_may_be_anything(path, value):
    shape = copy.deepcopy(torch_shapes.snapshot())
    place = shape
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    run = import_torch.from_snapshot(shape)
    assert len(run.events) >= 11
    assert all(len(name) <= 16384 for name in run.scopes)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_read_or_refused(data):
    damaged = bytearray(_GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at:at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4))
    try:
        run = import_torch.from_bytes(bytes(damaged))
    except SnapshotError:
        return
    identities.check(run)


@settings(max_examples=200, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats()
    | st.text(max_size=5), lambda some: st.lists(some, max_size=4)
    | st.dictionaries(st.text(max_size=3), some, max_size=4)))
def test_data_is_read_as_pickle_reads_it(value):
    for protocol in (2, 3, 4, 5):
        assert repr(plain_pickle.loads(pickle.dumps(value, protocol))) == (
            repr(value))


def test_long_runs_of_numbers_are_data():
    value = {"segments": [1] * 50_000 + [1 << 40] * 50_000}
    assert plain_pickle.loads(pickle.dumps(value, 4)) == value


def test_a_label_of_nested_dicts_is_one_line_of_text():
    shape = torch_shapes.snapshot()
    deep = {}
    for _ in range(5000):
        deep = {"d": deep}
    shape["device_traces"][0][0]["user_metadata"] = deep
    assert import_torch.from_snapshot(shape).scopes[1] == "d=…"
