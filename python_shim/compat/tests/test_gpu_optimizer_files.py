# SPDX-License-Identifier: Apache-2.0
"""What MemoryTracer writes and prints: flame graphs with every view of theirs,
timelines that are its events, and a summary for people."""

import dataclasses
import json
import os
import stat

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from stratalloc.compat.gpu_optimizer import (  # noqa: E402
    LayerMemoryStats, MemoryTracer)
from stratalloc.telemetry.checks import speedscope, timeline  # noqa: E402


class Net(nn.Module):

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.block = nn.Sequential(nn.Linear(64, 32), nn.ReLU())

    def forward(self, x):
        return (self.block(self.first(x)) * 2).sum()


RAN = {"", "first", "block", "block.0", "block.1"}


@pytest.fixture(scope="module")
def net():
    model = Net().cuda()
    model(batch()).backward()
    return model


def batch(rows=16):
    return torch.ones(rows, 64, device="cuda")


def _views(profile, frames):
    """What a viewer of flame graphs draws of a profile: how wide it is in time
    order, each first frame's bytes left heavy, each frame's in a sandwich."""
    order, heavy, sandwich, opened = 0, {}, {}, []
    if profile["type"] == "sampled":
        for stack, weight in zip(profile["samples"], profile["weights"]):
            order += weight
            heavy[stack[0]] = heavy.get(stack[0], 0) + weight
            for frame in set(stack):
                name = frames[frame]["name"]
                sandwich[name] = sandwich.get(name, 0) + weight
        return order, sum(heavy.values()), sandwich
    for event in profile["events"]:
        if event["type"] == "O":
            opened.append((event["frame"], event["at"]))
            continue
        frame, at = opened.pop()
        assert frame == event["frame"]  # brackets that match
        name = frames[frame]["name"]
        width = event["at"] - at
        sandwich[name] = sandwich.get(name, 0) + width
        order = max(order, event["at"])
        heavy[frame] = heavy.get(frame, 0) + (0 if opened else width)
    return order, sum(heavy.values()), sandwich


def test_a_flame_graph_has_all_views(net, tmp_path):
    tracer = MemoryTracer()
    path = tmp_path / "new" / "folder" / "profile.json"
    with pytest.raises(ValueError, match="nothing was recorded"):
        tracer.export_flame_graph(path)
    assert not path.parent.exists()
    with tracer.trace(net):
        net(batch(256)).backward()
    tracer.export_flame_graph(str(path))
    assert not speedscope.check(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = json.loads(path.read_text())
    frames = told["shared"]["frames"]
    views = {profile["name"]: _views(profile, frames)
             for profile in told["profiles"]}
    order, heavy, sandwich = views["peak holders cuda:0"]
    assert order == heavy == sandwich["cuda:0"] == max(
        event.allocated_bytes for event in tracer.events)
    assert sandwich["first"] > 0
    assert {one["unit"] for one in told["profiles"]} == {
        "bytes", "microseconds"}
    modules = [view for name, view in views.items()
               if name.startswith("modules")]
    assert len(modules) >= 2  # backward's thread, too
    assert any("Net.block.0" in sandwich for _, _, sandwich in modules)


def test_a_timeline_has_the_events(net, tmp_path):
    tracer = MemoryTracer()
    path = tmp_path / "deep" / "er" / "timeline.json"
    with pytest.raises(ValueError, match="timeline"):
        tracer.export_timeline(path)
    with tracer.trace(net):
        net(batch()).backward()
    tracer.export_timeline(path)
    assert not timeline.check(path)
    told = json.loads(path.read_text())
    assert told["events"] == [dataclasses.asdict(event)
                              for event in tracer.events]
    assert {name: LayerMemoryStats(**{
        key: one[key] for key in LayerMemoryStats.__dataclass_fields__})
        for name, one in told["layer_stats"].items()
    } == tracer.get_layer_stats()
    summary = told["summary"]
    assert summary == tracer.get_summary()
    assert summary["total_events"] == len(tracer.events)
    assert summary["total_layers"] == len(RAN)
    assert summary["peak_allocated_mb"] * 2**20 == max(
        event.allocated_bytes for event in tracer.events)
    assert 0 < summary["avg_fragmentation"] < 1
    assert told["recording"]["dropped_events"] == 0
    os.chmod(tmp_path, 0o500)
    try:
        if os.geteuid():  # root may write anywhere
            with pytest.raises(OSError):
                tracer.export_timeline(tmp_path / "no" / "t.json")
    finally:
        os.chmod(tmp_path, 0o700)


def test_the_summary_has_totals_and_five_layers(net, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    tracer = MemoryTracer()
    tracer.print_summary()
    assert "nothing was traced yet" in capsys.readouterr().out
    with tracer.trace(net):
        pass
    tracer.print_summary()
    assert "no layer of the model ran" in capsys.readouterr().out
    deep = nn.Sequential(*[nn.Linear(64, 64) for _ in range(7)]).cuda()
    with tracer.trace(deep):
        deep(batch())
    tracer.print_summary()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert len(lines) == 2 + 1 + 5 + 1 and "(3 more)" in lines[-1]
    assert "of 8 layers" in lines[0] and "peak allocated" in lines[1]
    assert "(the model)" in out and "\033" not in out and "KiB" in out


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_a_trace_in_which_nothing_happened_is_no_file(net, tmp_path, device):
    tracer = MemoryTracer(device=device)
    with tracer.trace(net):
        pass
    path = tmp_path / "new" / "file"
    for export in (tracer.export_flame_graph, tracer.export_timeline,
                   tracer.export_tensorboard):
        with pytest.raises(ValueError, match="nothing was recorded"):
            export(path)
    assert not path.parent.exists()
    few = MemoryTracer(max_events=1, device=device)
    with few.trace(net):
        torch.empty(9, device=device)  # something did, if it is not kept
    assert len(few.events) == 1
    few.export_flame_graph(path)
    assert not speedscope.check(path)


def test_without_fragmentation_tracking_none_is_told(net, tmp_path, capsys):
    tracer = MemoryTracer(enable_fragmentation_tracking=False)
    with tracer.trace(net):
        net(batch())
    tracer.export_timeline(tmp_path / "t.json")
    told = json.loads((tmp_path / "t.json").read_text())
    assert {one["avg_fragmentation"]
            for one in told["layer_stats"].values()} == {0.0}
    tracer.print_summary()
    assert "%" not in capsys.readouterr().out
