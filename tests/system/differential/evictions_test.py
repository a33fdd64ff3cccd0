# SPDX-License-Identifier: Apache-2.0
"""With tiering on, history tells evictions and restores as events that add up.

What is evicted is freed and its memory unmapped, what is restored mapped and
allocated again at its address. So a replay of the events has, at every step,
the bytes that are reserved and active on the device (events.py), and torch's
viewers understand it.
"""

import gc
import os

os.environ["STRATALLOC_CONF"] = "host_budget:256MiB"

from stratalloc import simulate

simulate.load("64MiB", mode="async")

# pylint: disable=wrong-import-position
import pytest
import stratalloc
import torch
from torch.cuda import _memory_viz

from python_shim.testing.let_go import let_go
from tests.system.differential import events

assert stratalloc.enable()
MIB = 1 << 20
LABELS = ("evicted", "restored")


def reserved_and_active():
    stats = torch._C._cuda_memoryStats(0)
    return [stats[name]["all"]["current"]
            for name in ("reserved_bytes", "active_bytes")]  # fmt: skip


class Recording:
    """History from here on; mark() compares sums, told() ends it."""

    def __init__(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert reserved_and_active() == [0, 0]
        torch.cuda.memory._record_memory_history(
            "all", stacks="python", clear_history=True
        )
        self.numbers = []

    def mark(self):
        """A snapshot's event, and the numbers of the same moment.

        The mover thread moves pages at any time: where the numbers before and
        after a snapshot differ, another one is taken.
        """
        for _ in range(1000):
            before = reserved_and_active()
            torch.cuda.memory._set_memory_metadata("after")
            torch.cuda.memory_snapshot(include_traces=False)
            torch.cuda.memory._set_memory_metadata("the program's")
            still = reserved_and_active() == before
            self.numbers.append(before if still else None)
            if still:
                return
        raise AssertionError("pages moved during each of 1000 snapshots")

    def told(self):
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._set_memory_metadata("")
        return snapshot, snapshot["device_traces"][0]


def with_label(events_told, *labels):
    return [
        (each["action"], each["size"]) for each in events_told
        if each["user_metadata"] in labels
    ]


def consistent(told, numbers):
    wrong = events.inconsistent({"events": told, "numbers": numbers}, 64 * MIB)
    assert not wrong, wrong


def make_parameters(count):
    return [
        torch.nn.Parameter(torch.full((MIB,), float(i), device="cuda"))
        for i in range(count)
    ]


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go(empty_cache=True)


def test_one_eviction_and_its_restore():
    recording = Recording()
    (weight,) = make_parameters(1)
    recording.mark()
    torch.cuda.synchronize()
    assert stratalloc.evict(weight) == 4 * MIB
    recording.mark()
    assert weight.sum().item() == 0
    recording.mark()
    del weight
    recording.mark()
    _, told = recording.told()
    away = with_label(told, "evicted")
    back = with_label(told, "restored")
    # Handle by handle: what was one block is freed, and what stays of it is
    # allocated again.
    assert [size for action, size in away if action == "segment_unmap"] == (
        [size for action, size in back if action == "segment_map"]
    )
    assert {action for action, _ in away} >= {
        "free_requested", "free_completed", "segment_unmap",
    }  # fmt: skip
    assert {action for action, _ in back} >= {"segment_map", "alloc"}

    def bytes_of(events_told, sign):
        return sum(size * sign.get(action, 0) for action, size in events_told)

    blocks = {"alloc": 1, "free_completed": -1}
    assert bytes_of(away, blocks) == -4 * MIB
    assert bytes_of(back, blocks) == 4 * MIB
    segments = {"segment_map": 1, "segment_unmap": -1}
    assert bytes_of(away, segments) == -bytes_of(back, segments) < 0
    # The block's own context, not that of whoever evicted it.
    frames = [
        [frame["name"] for frame in each["frames"]] for each in told
        if each["user_metadata"] == "restored" and each["action"] == "alloc"
    ]
    assert frames and all("make_parameters" in each for each in frames)
    consistent(told, recording.numbers)


def test_a_step_under_pressure_adds_up():
    recording = Recording()
    weights = make_parameters(24)  # 96 MiB on a card of 64 MiB
    recording.mark()
    for _ in range(2):
        for i, weight in enumerate(weights):
            with torch.no_grad():
                weight.add_(1)
            if i % 4 == 0:
                recording.mark()
        stratalloc.evict()
        recording.mark()
    assert [int(w[0].item()) for w in weights] == [i + 2 for i in range(24)]
    del weight, weights
    torch.cuda.synchronize()
    recording.mark()
    snapshot, told = recording.told()
    moved = with_label(told, *LABELS)
    assert sum(s for a, s in moved if a == "segment_unmap") >= 100 * MIB
    assert sum(s for a, s in moved if a == "segment_map") >= 100 * MIB
    for action in ("evicted", "restored"):
        assert with_label(told, action)
    # Everything else has the user's label.
    assert {each["user_metadata"] for each in told} <= {
        *LABELS, "after", "the program's", "",
    }  # fmt: skip
    consistent(told, recording.numbers)
    text = _memory_viz.trace(snapshot)
    assert "evicted" in text and "restored" in text
    for plot in (
        _memory_viz.trace_plot(snapshot),
        _memory_viz.trace_plot(snapshot, plot_segments=True),
        _memory_viz.segment_plot(snapshot),
    ):
        assert len(plot) > 1000
    assert "stream_0" in _memory_viz.segments(
        snapshot, format_flamegraph=lambda text, **_: text
    )
