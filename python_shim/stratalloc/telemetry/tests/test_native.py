# SPDX-License-Identifier: Apache-2.0
"""Snapshots that native made, and the peaks that torch.cuda.memory_stats() told
in the same program: random blocks of 512 bytes to 23 MiB, 160 steps, an
empty_cache() in between; recorded from the start, or with 20 blocks there."""

import pathlib

import pytest

import torch_shapes

from stratalloc.telemetry import identities, import_torch
from stratalloc.telemetry.formats import check
from stratalloc.telemetry.replay import Replay

MIB = 1 << 20
_FOLDER = pathlib.Path(__file__).parent / "golden"
_PEAKS = {"native_early": (42326528, 42326528, 42325804, 52428800),
          "native_late": (104231424, 104231424, 103051983, 125829120)}


@pytest.mark.parametrize("name", sorted(_PEAKS))
def test_peaks_are_torchs_to_the_byte(name):
    path = _FOLDER / (name + ".pickle")
    run = import_torch.read(path)
    replay = Replay(run, 0)
    assert tuple(getattr(replay, one).most() for one in (
        "allocated", "active", "requested", "reserved")) == _PEAKS[name]
    assert identities.check(run) == []
    assert check("snapshot", path) == []
    assert (replay.allocated.base > 0) == (name == "native_late")


def test_a_hole_ends_where_the_next_block_lives_then():
    base = torch_shapes.BASE
    size = {"a": (0, 4 * MIB), "b": (4 * MIB, 3 * MIB // 2),
            "c": (11 * MIB // 2, 20 * MIB - 11 * MIB // 2), "d": (0, 5 * MIB),
            "e": (0, 4 * MIB)}
    steps = ["+a", "+b", "+c", "-b", "-a", "+d", "-d", "+e", "-e", "-c"]
    events = [torch_shapes.event("segment_alloc", base, 20 * MIB, 0)]
    for time, (sign, name) in enumerate(steps, 1):
        for action in (("alloc",) if sign == "+"
                       else ("free_requested", "free_completed")):
            events.append(torch_shapes.event(
                action, base + size[name][0], size[name][1], time))
    free = torch_shapes.block(base, 20 * MIB, 0, "inactive")
    run = import_torch.from_snapshot({
        "segments": [torch_shapes.segment(base, 20 * MIB, [free])],
        "device_traces": [events]})
    # d keeps the rest before c, half a MiB; e's rest would be larger.
    assert Replay(run, 0).rows["size"].tolist() == [
        4 * MIB, 3 * MIB // 2, size["c"][1], 11 * MIB // 2, 4 * MIB]
    assert identities.check(run) == []
