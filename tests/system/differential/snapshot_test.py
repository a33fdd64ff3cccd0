# SPDX-License-Identifier: Apache-2.0
"""A snapshot of one program has what native's has, key by key.

Not equal, and why:
  address, time_us             of the process
  size, total_size             ours splits at 512 bytes and maps by the handle:
                               at most native's
  is_expandable                ours always is
  inactive blocks              native leaves the last requested size in them
  frames of a segment          where it was mapped; native loses them once it
                               splits the first block
  the observer's size          native says how much it asked the driver for
  cumulative counts and peaks  native allocates what is free in a checkpoint
  after going back             too, for a moment; ours only what was allocated
  requested bytes after it     native takes the rounded size, ours the real one
"""

import importlib.metadata
import pickle

import pytest

from tests.system.differential import kinds

CARD = 256 << 20
MINOR = int(importlib.metadata.version("torch").split(".")[1])
# Before 2.12 each capture has seed and offset of the generator in its pool, in
# a segment for small blocks.
GENERATOR = {} if MINOR >= 12 else {
    ("the graph's", 0, "small"): ["capture_begin"]}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    result = {}
    for kind in kinds.KINDS:
        output = folder / f"{kind}.pickle"
        kinds.run(kind, "tests.system.differential.snapshot_worker", output)
        result[kind] = pickle.loads(output.read_bytes())
    return result


both = pytest.mark.parametrize("kind", ["native", "expandable"])


def names(frames):
    return [frame["name"] for frame in frames]


def segments(told, kind):
    """(stream, pool, type): segment; the program makes one of each."""
    every, facts = told[kind]["snapshot"]["segments"], told[kind]["facts"]
    pools = [(0, 0), *facts["pools"]]
    streams = facts["streams"]
    result = {}
    for each in every:
        stream = each["stream"]
        place = streams.index(stream) if stream in streams else "the graph's"
        key = (place, pools.index(each["segment_pool_id"]),
               each["segment_type"])  # fmt: skip
        assert key not in result
        result[key] = each
    return result


def shape(value):
    """Keys and types all the way down, the values left out."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        shapes = {repr(shape(each)): shape(each) for each in value}
        return [type(value).__name__, [shapes[key] for key in sorted(shapes)]]
    return type(value).__name__


@both
def test_every_key_and_type(told, kind):
    native, ours = told[kind]["snapshot"], told["ours"]["snapshot"]
    assert set(native) == set(ours)
    for key in ("external_annotations", "allocator_settings"):
        assert shape(native[key]) == shape(ours[key])
    assert len(native["device_traces"]) == len(ours["device_traces"]) == 1

    def shapes(events):
        return {
            event["action"].replace("segment_map", "segment_alloc"):
            shape({**event, "frames": []})
            for event in events
        }

    assert shapes(native["device_traces"][0]) == shapes(
        ours["device_traces"][0]
    )

    def without_lists(segment):
        return shape({**segment, "blocks": [], "frames": []})

    for key, segment in segments(told, kind).items():
        mine = segments(told, "ours")[key]
        assert without_lists(segment) == without_lists(mine)
        (block,) = {str(shape({**b, "frames": []})) for b in segment["blocks"]}
        for each in mine["blocks"]:
            assert str(shape({**each, "frames": []})) == block


@both
def test_segments(told, kind):
    native, ours = segments(told, kind), segments(told, "ours")
    assert set(native) == set(ours) and len(ours) == 5 + len(GENERATOR)
    for key, segment in native.items():
        mine = ours[key]
        for name in ("active_size", "allocated_size", "requested_size",
                     "device"):  # fmt: skip
            assert mine[name] == segment[name], (key, name)
        assert mine["total_size"] <= segment["total_size"]
        assert mine["is_expandable"]
        assert names(segment["frames"]) in (names(mine["frames"]), [])
    first = {key: names(each["frames"])[:1] for key, each in ours.items()}
    assert first == {
        (0, 0, "small"): [],  # before history was on
        (0, 0, "large"): ["make_large"],
        (1, 0, "large"): ["make_on_a_stream"],
        (0, 1, "large"): ["make_in_a_pool"],
        ("the graph's", 2, "large"): ["capture"],
        **GENERATOR,
    }


@both
def test_blocks(told, kind):
    def blocks(side):
        return {
            key: [
                (block["state"], block["size"], block["requested_size"],
                 names(block["frames"]))
                for block in segment["blocks"] if block["state"] != "inactive"
            ]
            for key, segment in segments(told, side).items()
        }  # fmt: skip

    assert blocks("ours") == blocks(kind)
    states = [each[0] for every in blocks("ours").values() for each in every]
    assert states.count("active_pending_free") == 1
    for segment in told["ours"]["snapshot"]["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
            if block["state"] == "inactive":
                assert block["requested_size"] == 0 and not block["frames"]
        assert at == segment["address"] + segment["total_size"]


@both
def test_annotations_settings_and_labels(told, kind):
    native, ours = told[kind]["snapshot"], told["ours"]["snapshot"]

    def annotations(snapshot):
        return [(each["stage"], each["name"], each["device"])
                for each in snapshot["external_annotations"]]  # fmt: skip

    assert annotations(native) == annotations(ours)
    assert len(annotations(ours)) == 2
    settings = dict(native["allocator_settings"])
    if kind == "native":
        assert settings == ours["allocator_settings"]

    def labelled(snapshot):
        return [
            (each["action"], each["size"], each["user_metadata"])
            for each in snapshot["device_traces"][0]
            if not each["action"].startswith("segment")
        ]

    assert labelled(native) == labelled(ours)
    assert ("alloc", 5 << 20, "a label") in labelled(ours)
    # Annotations are on the clock of the events.
    start, end = (each["time_us"] for each in ours["external_annotations"])
    inside = [
        each for each in ours["device_traces"][0]
        if start <= each["time_us"] <= end
    ]
    assert {"make_small", "make_large"} <= {
        name for each in inside for name in names(each["frames"])
    }


@both
def test_out_of_memory(told, kind):
    def oom(side):
        (event,) = [
            each for each in told[side]["snapshot"]["device_traces"][0]
            if each["action"] == "oom"
        ]
        return event

    assert oom("ours")["size"] == oom(kind)["size"] == (300 << 20) + 512
    assert oom("ours")["stream"] == oom(kind)["stream"] == 0
    assert names(oom("ours")["frames"]) == names(oom(kind)["frames"])
    for side in (kind, "ours"):
        (seen,) = told[side]["facts"]["observed"]
        device, size, total, free = seen
        assert (device, total) == (0, CARD)
        assert free == oom(side)["device_free"]
        assert size >= (300 << 20) + 3
        # Nothing is mapped or given back between the refusal and the end.
        assert told[side]["facts"]["used"] == told[side]["facts"]["reserved"]
    assert oom("ours")["device_free"] >= oom(kind)["device_free"]
    assert told["ours"]["facts"]["observed"][0][1] == (300 << 20) + 3


@both
def test_going_back_to_a_checkpoint(told, kind):
    native, ours = told[kind]["checkpoint"], told["ours"]["checkpoint"]
    for name in ("allocation", "active"):
        for pool in ("all", "small_pool", "large_pool"):
            n, o = (each["statistics"][name][pool] for each in (native, ours))
            assert o["current"] == n["current"]
            assert o["peak"] <= n["peak"]
            assert o["allocated"] - o["freed"] == n["allocated"] - n["freed"]
        n, o = (each["statistics"][name]["all"] for each in (native, ours))
        assert n["allocated"] - o["allocated"] == native["free"] > 0
        assert (o["allocated"], o["freed"]) == (3, 1)
    for name in ("allocated_bytes", "active_bytes"):
        n, o = (each["statistics"][name]["all"] for each in (native, ours))
        assert o["current"] == n["current"] and o["peak"] <= n["peak"]
    assert ours["requested"] == [700, 30000, (11 << 20) + 77]
    assert sum(ours["requested"]) == (
        ours["statistics"]["requested_bytes"]["all"]["current"]
    )
    assert native["requested"] == [-(-r // 512) * 512
                                   for r in ours["requested"]]  # fmt: skip
