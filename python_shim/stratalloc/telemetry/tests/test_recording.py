# SPDX-License-Identifier: Apache-2.0
"""Recordings are read whole or refused with a sentence, whatever is in them."""

import json
import random
import struct
import tracemalloc

import numpy as np
import pytest

from damage import place
from made_recordings import file_of, section, two_blocks
from stratalloc._native import device_metrics, stack
from stratalloc.telemetry import identities, model, recording
from stratalloc.telemetry.analysis import lines, summary
from stratalloc.telemetry.model import Kind


def read(tmp_path, data):
    path = tmp_path / "r.strata"
    path.write_bytes(data)
    return recording.read(str(path))


def test_names_of_a_recording_are_those_of_the_core():
    assert model.CATEGORIES == stack.CATEGORIES
    assert model.TIERS == device_metrics.TIERS


def test_a_recording_is_a_run_that_adds_up(tmp_path):
    run = read(tmp_path, file_of(*two_blocks()))
    assert identities.check(run) == []
    assert run.scopes[2] == "Net.\U0001f600"
    assert run.sites[1] == model.Site("a b.py", 3, "f")
    assert run.sites[2:] == [model.Site("a b.py", 3, "f", 0, 1),
                             model.Site("/l/c.py", 2, "g h", 2, 1)]
    assert run.events["site"].tolist() == [0, 1, 1, 3, 0]
    assert run.stack(3) == [run.sites[3], run.sites[2]]
    assert lines.line(run, 3) == "a b.py:3", "the user's, not the innermost"
    assert run.threads == ["python 77"]
    assert run.pools[1] == model.Pool(0, 0, (0, 0))
    assert run.devices[0].capacity == 1 << 20
    assert run.devices[0].stats["allocated_bytes.all.freed"] == 512
    mark = run.events[run.events["kind"] == Kind.MARK][0]
    assert run.scopes[mark["scope"]] == "step 1"
    assert run.dropped == 0 and not run.torn


def test_a_file_may_have_lines_alone_or_sites_without_names(tmp_path):
    head, events = two_blocks()
    head["sites"] = [[1, "a b.py:3 f"]]
    head["stacks_lost"] = 3
    head["level"] = "full"
    run = read(tmp_path, file_of(head, events))
    assert identities.check(run) == []
    assert run.sites[1:] == [model.Site("a b.py", 3, "f"),
                             model.Site("", 0, "site #20001")]
    assert run.events["site"].tolist() == [0, 1, 1, 2, 0]
    assert (run.stacks_lost, run.level) == (3, "full")
    assert "of 3 allocations the line alone" in str(summary.summary(run))


def test_what_is_missing_shows(tmp_path):
    head, events = two_blocks()
    head["end"][0]["segments"][0]["blocks"][1][1] = 512
    head["end"][0]["segments"][0]["blocks"][2][:2] = [8704, 3584]
    assert identities.check(read(tmp_path, file_of(head, events)))


def test_sections_of_later_versions_are_skipped(tmp_path):
    more = section(b"NEW!", b"123", check=0)
    run = read(tmp_path, file_of(*two_blocks(), more))
    assert len(run.events) == 5


@pytest.mark.parametrize("data, says", [
    (b"", "does not begin"),
    (b"STRATREC", "does not begin"),
    (b"STRATRNG" + bytes(100), "stratalloc recover"),
    (b"STRATREC" + struct.pack("<II", 9, 0), "update stratalloc"),
    (b"STRATREC" + struct.pack("<II", 1, 0), "truncated"),
    (b"STRATREC" + struct.pack("<II", 1, 0) + section(b"END.", b""), "missing"),
    (b"STRATREC" + struct.pack("<II", 1, 0)
     + struct.pack("<4sIQ", b"EVNT", 0, 1 << 62), "truncated"),
    (file_of(b"[1]", np.empty(0, model.EVENT)), "no JSON object"),
    (file_of(b"{" * 100000, np.empty(0, model.EVENT)), "no JSON"),
    (file_of({}, np.zeros(7, "u1")), "wrong length"),
])
def test_what_is_no_recording_is_said_so(tmp_path, data, says):
    with pytest.raises(recording.RecordingError, match=says):
        read(tmp_path, data)


def test_turned_bytes_of_a_section_are_found(tmp_path):
    data = bytearray(file_of(*two_blocks()))
    data[-100] ^= 1
    with pytest.raises(recording.RecordingError, match="section EVNT"):
        read(tmp_path, bytes(data))


def test_cut_anywhere_it_is_refused(tmp_path):
    data = file_of(*two_blocks())
    for size in range(0, len(data), 7):
        with pytest.raises(recording.RecordingError):
            read(tmp_path, data[:size])


@pytest.mark.parametrize("column, value", [
    ("bytes", 1 << 63), ("aux", 1 << 62), ("time", 1 << 62),
    ("time", -1), ("time", -1 << 63), ("category", len(model.CATEGORIES)),
    ("kind", max(Kind) + 1), ("device", 16)])
def test_an_event_that_cannot_be_is_refused(tmp_path, column, value):
    head, events = two_blocks()
    events[column][3] = value
    with pytest.raises(recording.RecordingError, match="it has events o[fr]"):
        read(tmp_path, file_of(head, events))


@pytest.mark.parametrize("name, value", [
    ("overwritten", -1), ("unknown", 1 << 62), ("started", 10**400),
    ("duration", -5), ("complete_from", 1.5), ("names_lost", "9")])
def test_a_number_that_cannot_be_is_refused(tmp_path, name, value):
    head, events = two_blocks()
    head[name] = value
    with pytest.raises(recording.RecordingError, match=f"{name} of its head"):
        read(tmp_path, file_of(head, events))


@pytest.mark.parametrize("value", [-1, 10**400, "4"])
def test_a_counter_that_cannot_be_is_refused(tmp_path, value):
    for stats in ({"num_ooms": value},
                  {"allocated_bytes": [0, value, 0, 0]}):
        head, events = two_blocks()
        head["end"][0]["stats"] = stats
        with pytest.raises(recording.RecordingError, match="of its head"):
            read(tmp_path, file_of(head, events))


@pytest.mark.parametrize("owner", [[], [0], [0, 1, 2], [0, "1"], 7, None])
def test_segment_owner_that_is_no_pair_raises_recording_error(tmp_path, owner):
    head, events = two_blocks()
    head["end"][0]["segments"][0]["owner"] = owner
    with pytest.raises(recording.RecordingError, match="end of its head"):
        read(tmp_path, file_of(head, events))


def test_what_a_program_says_of_itself_is_told_as_far_as_it_can_be(tmp_path):
    head, events = two_blocks()
    head["about"] = {"small": -3, "large": -10**30, "torch": "2"}
    assert read(tmp_path, file_of(head, events)).about == {
        "small": -3, "torch": "2"}
    with pytest.raises(recording.RecordingError, match="NaN"):
        read(tmp_path, file_of(json.dumps(
            head | {"about": {"x": float("nan")}}).encode(), events))


def test_what_a_program_says_of_itself_has_numbers_of_every_format(tmp_path):
    head, events = two_blocks()
    said = {"large": 10**1000, "list": [1, 10**30, "x"], "deep": {
        "large": -1 << 62, "deeper": [[1]], "some": 1.5, "none": None}}
    head["about"] = {**said, "settings": said}
    run = read(tmp_path, file_of(head, events))
    assert run.settings == {"deep": {"some": 1.5, "none": None},
                            "list": [1, "x"]}
    assert run.about == {"deep": {"some": 1.5, "none": None, "deeper": []},
                         "list": [1, "x"], "settings": run.settings}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "Infinity"])
def test_a_head_with_a_number_that_is_not_finite_is_no_json(tmp_path, number):
    head, events = two_blocks()
    raw = json.dumps(head | {"about": {"x": "HERE"}})
    with pytest.raises(recording.RecordingError, match="no finite number"):
        read(tmp_path, file_of(raw.replace('"HERE"', number).encode(), events))


def test_blocks_of_more_than_64_bits_are_refused(tmp_path):
    for where in ("start", "end"):
        head, events = two_blocks()
        first = head[where][0]["segments"][0]
        for at in (1 << 40, 1 << 41):
            head[where][0]["segments"].append(
                first | {"address": at, "size": 1 << 61, "blocks": [
                    [at, 1 << 61, 0, 0, 0, 0]]})
        with pytest.raises(recording.RecordingError, match="add up to more"):
            read(tmp_path, file_of(head, events))


def test_events_that_are_a_hole_take_no_memory(tmp_path):
    """A file's size is no proof that somebody wrote it."""
    claimed = 48 << 34  # 824 GB
    path = tmp_path / "hole.strata"
    with open(path, "wb") as file:
        file.write(b"STRATREC" + struct.pack("<II", 1, 0) + section(
            b"HEAD", b"{}") + struct.pack("<4sIQ", b"EVNT", 0, claimed))
        file.truncate(file.tell() + claimed)
    tracemalloc.start()
    with pytest.raises(recording.RecordingError,
                       match=f"its events claim {claimed} bytes"):
        recording.read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_names_that_had_no_room_and_marks_are_told_apart(tmp_path):
    head, events = two_blocks()
    before = summary.summary(read(tmp_path, file_of(head, events)))
    head["names_lost"] = 7
    events["kind"][4] = Kind.SCOPE_LEAVE
    events["scope"][4] = 2
    after = summary.summary(read(tmp_path, file_of(head, events)))
    assert before.scopes == after.scopes  # the mark is none
    assert "7 names had no room" in str(after) and "names" not in str(before)


def test_segments_of_one_stream_share_its_pool(tmp_path):
    head, events = two_blocks()
    segment = head["end"][0]["segments"].pop()
    head["end"][0]["segments"] = [
        segment | {"stream": i, "address": (i + 1) << 20, "blocks": []}
        for i in [*range(4000), *range(4000)]]
    run = read(tmp_path, file_of(head, events))
    pools = [run.pools[one.pool] for one in run.devices[0].end]
    assert [pool.stream for pool in pools] == [*range(4000)] * 2
    assert len(set(run.pools)) == len(run.pools) - 1  # "none" is like stream 0


def test_whatever_was_asked_for_in_vain_is_read(tmp_path):
    head, events = two_blocks()
    events["kind"][4], events["bytes"][4] = Kind.OOM, (1 << 64) - 1
    assert read(tmp_path, file_of(head, events)).events["bytes"][4] == \
        (1 << 64) - 1


@pytest.mark.parametrize("inputs", [
    300, pytest.param(1500, marks=pytest.mark.long)])
def test_no_head_does_more_than_an_error(tmp_path, inputs):
    """Values of the head in the places of others: a Run or a RecordingError,
    and no memory beyond the file's size."""
    chance = random.Random(5)
    tracemalloc.start()
    refused = 0
    for _ in range(inputs):
        head, events = two_blocks()
        for _ in range(chance.randint(1, 3)):
            place(head, chance)
        if chance.random() < .3:
            column = chance.choice(model.EVENT.names)
            events[column][chance.randrange(5)] = chance.choice(
                (0, 1, np.iinfo(events[column].dtype).max))
        try:
            read(tmp_path, file_of(head, events))
        except recording.RecordingError as error:
            refused += 1
            assert str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused
    assert peak < 300 << 20
