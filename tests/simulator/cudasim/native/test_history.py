# SPDX-License-Identifier: Apache-2.0
"""What the native allocator tells about itself: history, snapshots, plots."""

import gc
import os
import pickle

import pytest

from tests.simulator.cudasim.operator_bridge import simulated

device = simulated.load(memory="256MiB")

import torch  # pylint: disable=wrong-import-position

# Our segments grow by mapping, as native's expandable ones, where a device can.
COMES, GOES = (
    ("segment_map", "segment_unmap")
    if simulated.allocator() == "stratalloc"
    and os.environ.get("CUDASIM_VMM") != "off"
    else ("segment_alloc", "segment_free")
)
from torch.cuda import _memory_viz  # pylint: disable=wrong-import-position

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
    torch.cuda.empty_cache()
    assert device.used() == 0
    assert device.violations() == []


def make_a_layer():
    return torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")


def actions(snapshot):
    return [each["action"] for each in snapshot["device_traces"][0]]


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_history_has_allocations_and_their_stacks(stacks):
    torch.cuda.memory._record_memory_history("all", stacks=stacks)
    x = make_a_layer()
    where = x.data_ptr()
    del x
    torch.cuda.empty_cache()
    snapshot = torch.cuda.memory._snapshot()
    trace = snapshot["device_traces"][0]
    assert actions(snapshot)[:4] == [
        COMES, "alloc", "free_requested", "free_completed",
    ]
    assert GOES in actions(snapshot)
    (alloc,) = [each for each in trace if each["action"] == "alloc"]
    assert alloc["addr"] == where and alloc["size"] == 4 * MIB
    names = [frame["name"] for frame in alloc["frames"]]
    assert "make_a_layer" in names
    if stacks == "all":
        assert any("::" in name for name in names)


def test_state_keeps_only_the_living():
    torch.cuda.memory._record_memory_history("state", stacks="python")
    x = make_a_layer()
    y = make_a_layer()
    del y
    snapshot = torch.cuda.memory._snapshot()
    assert len(actions(snapshot)) <= 1  # no history, only the last entry
    frames = [
        block["frames"]
        for segment in snapshot["segments"] for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert len(frames) == 1
    assert "make_a_layer" in [frame["name"] for frame in frames[0]]
    del x


def test_max_entries():
    torch.cuda.memory._record_memory_history("all", max_entries=10)
    for _ in range(50):
        make_a_layer()
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 10
    assert set(actions(torch.cuda.memory._snapshot())) <= {
        "alloc", "free_requested", "free_completed", "snapshot",
    }


def test_recording_stops():
    torch.cuda.memory._record_memory_history("all")
    make_a_layer()
    torch.cuda.memory._record_memory_history(None)
    before = len(torch.cuda.memory._snapshot()["device_traces"][0])
    make_a_layer()
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == before


def test_dump_and_plots(tmp_path):
    torch.cuda.memory._record_memory_history("all", stacks="python")
    early = torch.cuda.memory._snapshot()
    keep = make_a_layer()
    gone = torch.ones(MIB, device="cuda")
    del gone
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot["segments"] and snapshot["device_traces"][0]
    for plot in (
        _memory_viz.trace_plot(snapshot),
        _memory_viz.trace_plot(snapshot, plot_segments=True),
        _memory_viz.segment_plot(snapshot),
    ):
        assert "<html" in plot.lower() or "<script" in plot.lower()
        assert len(plot) > 1000
    table = _memory_viz.segsum(snapshot)
    assert "4.0MiB" in table or "MiB" in table
    assert "make_a_layer" in _memory_viz.trace(snapshot) or "alloc" in (
        _memory_viz.trace(snapshot)
    )

    def lines(text, **_):
        return text

    memory = _memory_viz.memory(snapshot, format_flamegraph=lines)
    assert f"{4 * MIB}" in memory and "make_a_layer" in memory
    segments = _memory_viz.segments(snapshot, format_flamegraph=lines)
    assert "stream_0" in segments
    changed = _memory_viz.compare(
        early["segments"], snapshot["segments"], format_flamegraph=lines
    )
    assert "only_after" in changed
    del keep


def test_snapshot_agrees_with_the_statistics():
    tensors = [
        torch.empty(n, dtype=torch.uint8, device="cuda")
        for n in (100, 5000, MIB, 3 * MIB, 11 * MIB, 25 * MIB)
    ]
    del tensors[3]
    snapshot = torch.cuda.memory_snapshot()
    stats = torch.cuda.memory_stats()
    assert sum(s["total_size"] for s in snapshot) == (
        torch.cuda.memory_reserved()
    )
    assert sum(s["allocated_size"] for s in snapshot) == (
        torch.cuda.memory_allocated()
    )
    assert sum(s["active_size"] for s in snapshot) == (
        stats["active_bytes.all.current"]
    )
    assert len(snapshot) == stats["segment.all.current"]
    blocks = [b for s in snapshot for b in s["blocks"]]
    assert sum(b["state"] == "active_allocated" for b in blocks) == (
        stats["allocation.all.current"]
    ) == len(tensors)
    for segment in snapshot:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    assert device.used() == torch.cuda.memory_reserved()
    requested = sum(b["requested_size"] for b in blocks
                    if b["state"] == "active_allocated")
    assert requested == sum(t.numel() for t in tensors)
    assert requested == stats["requested_bytes.all.current"]


def test_out_of_memory_observer():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *numbers: seen.append(numbers)
    )
    torch.cuda.memory._record_memory_history("all", stacks="python")
    x = make_a_layer()
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    assert "Tried to allocate 400.00 MiB" in str(error.value)
    (index, wanted, _, _) = seen[0]
    assert (index, wanted) == (0, 400 * MIB)
    assert "oom" in actions(torch.cuda.memory._snapshot())
    (oom,) = [
        each for each in torch.cuda.memory._snapshot()["device_traces"][0]
        if each["action"] == "oom"
    ]
    assert oom["size"] == 400 * MIB
    del x


def test_metadata_of_a_block():
    torch.cuda.memory._record_memory_history("all", stacks="python")
    torch.cuda.memory._set_memory_metadata("the first layer")
    assert torch.cuda.memory._get_memory_metadata() == "the first layer"
    make_a_layer()
    torch.cuda.memory._set_memory_metadata("")
    marked = [
        each["user_metadata"]
        for each in torch.cuda.memory._snapshot()["device_traces"][0]
        if each["action"] == "alloc"
    ]
    assert marked == ["the first layer"]


def test_profiler_with_memory():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True, record_shapes=True, with_stack=True,
    ) as profile:
        x = torch.ones(MIB, device="cuda")
        y = x * 2
        del x, y
    averages = profile.key_averages()
    assert any(each.device_memory_usage >= 4 * MIB for each in averages)
    allocated = [
        event for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.nbytes() > 0
        and event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    assert sum(event.nbytes() for event in allocated) == 8 * MIB


def test_summary():
    x = make_a_layer()
    text = torch.cuda.memory_summary()
    assert "Allocated memory" in text and "4096 KiB" in text
    short = torch.cuda.memory_summary(abbreviated=True)
    assert "Allocated memory" in short and len(short) < len(text)
    del x


def test_saved_history_is_readable_by_pickle_alone(tmp_path):
    torch.cuda.memory._record_memory_history("all", context="alloc")
    make_a_layer()
    path = tmp_path / "history.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    (frames,) = [
        each["frames"] for each in snapshot["device_traces"][0]
        if each["action"] == "alloc"
    ]
    assert "make_a_layer" in [frame["name"] for frame in frames]
    assert snapshot["allocator_settings"]
