# SPDX-License-Identifier: Apache-2.0
"""Gaps of runs: what is missing is said, and changes the verdict."""

import copy
import gzip
import json
import pickle

import pytest

import made_recordings
import made_runs
import torch_shapes
from stratalloc.cli import command_line as cli
from stratalloc.telemetry import files, gaps, import_torch, recording
from stratalloc.telemetry.analysis import fit, verdict
from stratalloc.telemetry.errors import TelemetryError
from stratalloc.telemetry.exports import snapshot
from torch_shapes import BASE, MIB, block, event, segment

FAR = BASE + (1 << 40)


def whole(count=4, kept=24):
    """A snapshot recorded from the program's start: `kept` MiB, then `count`
    times 10 MiB that come and go."""
    events = [event("segment_alloc", FAR, kept * MIB, 1),
              event("alloc", FAR, kept * MIB, 2),
              event("segment_alloc", BASE, 10 * MIB, 3)]
    for i in range(count):
        events += [event("alloc", BASE, 10 * MIB, 10 * i + 4),
                   event("free_requested", BASE, 10 * MIB, 10 * i + 5),
                   event("free_completed", BASE, 10 * MIB, 10 * i + 6)]
    return {
        "segments": [
            segment(BASE, 10 * MIB, [block(BASE, 10 * MIB, 0, "inactive")]),
            segment(FAR, kept * MIB, [block(FAR, kept * MIB, kept * MIB)])],
        "device_traces": [events], "external_annotations": [],
        "allocator_settings": {}}


def without_first(shape, count):
    del shape["device_traces"][0][:count]
    return shape


def overflowed(flag=True, most=None):
    shape = without_first(whole(100), 3)
    settings = shape["allocator_settings"]
    if flag is not None:
        settings["trace_alloc_overflowed"] = flag
    settings["trace_alloc_max_entries"] = most or 300
    return shape


def never_recorded():
    return {**whole(), "device_traces": [[]]}


def unknown():
    shape = whole()
    shape["device_traces"][0].insert(5, event("teleport", BASE, MIB, 7))
    return shape


def without_a_free():
    shape = whole()
    del shape["device_traces"][0][7:9]  # and the next block begins there
    return shape


def never_freed():
    shape = whole()
    shape["device_traces"][0].append(event("alloc", BASE + MIB, MIB, 99))
    return shape


_LACKING = {
    "overflowed, by the flag": (overflowed(), "overwritten",
                                "events before the first of 300"),
    "overflowed, by its length": (overflowed(flag=None), "overwritten",
                                  "were overwritten"),
    "overflowed, with a list of frees": (
        without_first(whole(), 5), "before", "older than the first event"),
    "late, of a block": (without_first(whole(), 2), "before",
                         "24 MiB in 1 block is older"),
    "late, of a segment": (without_first(whole(kept=1), 0) | {
        "segments": [segment(BASE, 10 * MIB, [
            block(BASE, 10 * MIB, 0, "inactive")]), segment(FAR, MIB, [
                block(FAR, MIB, MIB)]), segment(FAR + MIB * 9, 5 * MIB, [
                    block(FAR + MIB * 9, 5 * MIB, 0, "inactive")])]},
        "before", "5 MiB of reserved memory is older"),
    "never recorded": (never_recorded(), "unrecorded", "no event was recorded"),
    "a list of segments": (whole()["segments"], "unrecorded",
                           "_record_memory_history"),
    "of an unknown kind": (unknown(), "unknown",
                           "1 event of unknown kinds (teleport)"),
    "without a free": (without_a_free(), "unmatched",
                       "without a matching end"),
    "never freed and not there": (never_freed(), "unmatched", "1 block"),
}


@pytest.mark.parametrize("name", sorted(_LACKING))
def test_snapshot_that_lacks_events_is_not_exact(name, tmp_path, capfd):
    shape, kind, says = _LACKING[name]
    run = import_torch.from_snapshot(copy.deepcopy(shape))
    assert kind in {gap.kind for gap in gaps.gaps(run, 0)}
    assert says in gaps.missing(run) and not gaps.exact(run, 0)
    found = verdict.verdict(run)
    assert found.kind == "not_known" and says in found.sentence
    assert fit.fit(run, 1 << 34).fits is None
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(shape, 4))
    assert cli.main(["fit", str(path), "--capacity", "16GiB"]) == 4
    told = capfd.readouterr()
    assert "not known whether it fits 16 GiB" in told.out
    assert says in told.out and says in told.err
    for command in ("summary", "tree", "peak", "leaks", "report"):
        answer = tmp_path / "answer"
        more = ["-o", str(tmp_path / "o.html")] if command == "report" else []
        assert cli.main([command, str(path), *more, "--json",
                         str(answer)]) == 0
        said = json.loads(answer.read_text())
        assert said["recording"]["exact"] is False
        assert says in said["recording"]["missing"]
        capfd.readouterr()
    assert says in (tmp_path / "o.html").read_text()


@pytest.mark.parametrize("shape", [
    whole(), overflowed(flag=False), {**overflowed(False, 1 << 20)}],
    ids=["from the start", "a ring just full", "a ring with room"])
def test_snapshot_recorded_from_the_start_is_exact(shape):
    if shape["allocator_settings"]:  # with its first events again
        shape["device_traces"][0][:0] = whole()["device_traces"][0][:3]
    run = import_torch.from_snapshot(shape)
    assert gaps.missing(run) == "" and gaps.exact(run, 0)
    assert fit.fit(run, 64 * MIB).fits is True
    assert fit.fit(run, 16 * MIB).fits is False


def test_fit_of_a_part_that_is_too_large_is_no():
    for name, (shape, _, _) in _LACKING.items():
        run = import_torch.from_snapshot(copy.deepcopy(shape))
        assert fit.fit(run, 2 * MIB).fits is False, name


def test_fit_of_holes_in_a_recorded_part_is_not_known():
    # 34 MiB live; that older blocks lay so that they do not fit is a guess.
    run = import_torch.from_snapshot(without_first(whole(), 2))
    assert fit.fit(run, 34 * MIB).fits is None
    assert fit.fit(run, 32 * MIB).fits is False


def test_device_without_a_gap_beside_one_is_exact():
    shape = whole()
    shape["segments"].append({**segment(
        BASE, 2 * MIB, [block(BASE, 2 * MIB, MIB)]), "device": 1})
    run = import_torch.from_snapshot(shape)
    assert gaps.exact(run, 0) and not gaps.exact(run, 1)
    assert gaps.missing(run).startswith("device 1: no event was recorded")
    assert fit.fit(run, 64 * MIB, device=0).fits
    assert fit.fit(run, 64 * MIB, device=1).fits is None


def test_pinned_host_segments_are_said_and_are_no_gap(tmp_path, capfd):
    shape = whole()
    shape["host_segments"] = [{"address": 1 << 20, "size": 3 * MIB}] * 2
    shape["host_traces"] = []
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(shape, 4))
    assert cli.main(["fit", str(path), "--capacity", "64MiB"]) == 0
    assert "2 segments of pinned host memory, 6 MiB" in capfd.readouterr().err


def recorded(allocated, reserved=8192, **more):
    """A Run of ours that began when memory was held, by its counters' peaks."""
    head, events = made_recordings.two_blocks()
    stats = {} if allocated is None else {
        "allocated_bytes": [512, allocated, 512, 0],
        "reserved_bytes": [8192, reserved, 8192, 0]}
    head["start"][0]["stats"] = stats
    return made_recordings.file_of({**head, **more}, events)


@pytest.mark.parametrize("held, says", [
    (recorded(4096), "up to 4 KiB was allocated"),
    (recorded(512, 1 << 20), "and 1 MiB reserved"),
    (recorded(None), "what was there before is not known"),
    (recorded(512, torn=True), "did not end by itself"),
    (recorded(512, overwritten=3), "3 events are missing")])
def test_recording_of_ours_that_lacks_events_is_not_exact(tmp_path, held,
                                                          says):
    path = tmp_path / "r.strata"
    path.write_bytes(held)
    run = recording.read(path)
    assert says in gaps.missing(run) and not gaps.exact(run, 0)


def test_recording_that_began_late_is_exact_below_an_older_peak(tmp_path):
    path = tmp_path / "r.strata"
    path.write_bytes(recorded(1024))
    run = recording.read(path)
    assert gaps.missing(run) == "" and fit.fit(run, 2 * MIB).fits
    path.write_bytes(recorded(512, 64 * MIB))
    run = recording.read(path)
    # What was reserved before is known, so a card of that size has room.
    assert fit.fit(run, 64 * MIB).fits is True
    assert fit.fit(run, 62 * MIB).fits is None
    path.write_bytes(recorded(50 * MIB, 64 * MIB))
    found = fit.fit(recording.read(path), 48 * MIB)
    assert found.fits is False and found.failure is None
    assert "does not fit 48 MiB: before the recording began" in str(found)


def test_converted_recording_keeps_its_gaps(tmp_path):
    run = made_runs.story()
    run.dropped = 7
    path = tmp_path / "made.pickle"
    snapshot.write(run, path)
    again = import_torch.read(path)
    assert gaps.missing(again) == gaps.missing(run) != ""
    assert fit.fit(again, 1 << 50).fits is None
    run.dropped = 0
    snapshot.write(run, path)
    assert gaps.missing(import_torch.read(path)) == ""


def _packed(data):
    return gzip.compress(data)


@pytest.mark.parametrize("made", [
    pickle.dumps(whole(), 4), json.dumps(whole()).encode(), recorded(512)])
def test_file_packed_with_gzip_is_read_by_its_first_bytes(tmp_path, made):
    plain, zipped = tmp_path / "a", tmp_path / "b.anything"
    plain.write_bytes(made)
    zipped.write_bytes(_packed(made[:100]) + _packed(made[100:]) + b"\0" * 8)
    one, two = files.load(plain), files.load(zipped)
    assert one.events.tolist() == two.events.tolist() and len(one.events)
    assert one.source == two.source


@pytest.mark.parametrize("held, says", [
    (_packed(pickle.dumps(whole(), 4))[:-20], "cut off"),
    (_packed(recorded(512))[:-20], "cut off"),
    (_packed(b"\x80\x04" + b"]" * (64 << 20)), "expands to more than"),
    (_packed(b"STRATREC" + bytes(64 << 20)), "expands to more than"),
    (b"\x1f\x8b" + b"x" * 50, "gzip is damaged"),
    (_packed(b"hello"), "neither a pickle nor JSON")])
def test_damaged_gzip_is_an_error_that_says_why(tmp_path, held, says):
    path = tmp_path / "r.gz"
    path.write_bytes(held)
    with pytest.raises(TelemetryError, match=says) as error:
        files.load(path)
    assert str(path) in str(error.value)
