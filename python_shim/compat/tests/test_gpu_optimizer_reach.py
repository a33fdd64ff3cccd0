# SPDX-License-Identifier: Apache-2.0
"""How far what a tracer tells reaches: over all that happened, whatever it
keeps; from a container over the layers inside; and until the program ends."""

import os
import re
import subprocess
import sys

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc.compat.gpu_optimizer import MemoryTracer, _host  # noqa: E402
from stratalloc.telemetry import model as model_of_runs  # noqa: E402
from stratalloc.telemetry import replay  # noqa: E402
from stratalloc.telemetry.exports import notes  # noqa: E402
from stratalloc.telemetry.exports.layers import layers  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402

_STEPS = 24
_KIB = 1024


class Hoarder(nn.Module):
    """Keeps 64 KiB of each of its calls, and one early peak."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.kept = []

    def forward(self, x):
        if not self.kept:
            torch.empty(4 << 20, dtype=torch.uint8, device=x.device)
        self.kept.append(torch.empty(
            64 * _KIB, dtype=torch.uint8, device=x.device))
        return self.layer(x)


@pytest.fixture(params=["cuda:0", "cpu"])
def device(request):
    return request.param


def test_leaks_and_advice_are_of_all_that_happened(device):
    few = MemoryTracer(max_events=60, device=device)
    model = Hoarder().to(device)
    x = torch.ones(8, 64, device=device)
    with few.trace(model):
        for _ in range(_STEPS):
            model(x).sum().backward()
        inside = few.get_recommendations()  # of the host: nothing yet
    assert len(few.events) == 60 < few._traced.happened
    assert few.lost_events == 0

    leaks = few.get_leaks()
    assert leaks.enough and leaks.rows[0].per_step == pytest.approx(
        64 * _KIB)
    assert leaks.at == f"{_STEPS} steps, from one Hoarder to the next"
    told = few.get_recommendations()
    # What is in it is true: nothing is missing, and the peak is the summary's.
    assert told and not any("missing" in one for one in told)
    assert device == "cpu" or told == inside  # before any was given up
    assert any("kept growing" in one for one in told)
    assert any("get_leaks()" in one for one in told)

    # What is kept says that it is a part, and by whose will.
    run = few.run()
    assert len(run.events) == 60 and run.left_out == run.dropped > 0
    assert notes.missing(run).startswith(
        f"{run.left_out} older events were recorded and not kept; what is told")
    assert "overwritten" not in notes.missing(run)
    assert notes.notes(run)["left_out_events"] == run.left_out


def test_the_peak_is_one_wherever_it_is_told(device):
    few = MemoryTracer(max_events=20, device=device)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to(device)
    x = torch.ones(8, 64, device=device)
    with few.trace(model):
        torch.empty(3 << 20, dtype=torch.uint8, device=device)
        for _ in range(5):
            model(x).sum().backward()
    said, = few.get_recommendations()
    peak = few.get_summary()["peak_allocated_mb"]
    assert peak >= 3
    assert float(re.search(r"at most ([\d.]+) MiB", said)[1]) == pytest.approx(
        peak, abs=.01)
    assert "card whose size" not in said
    assert ("of the host's memory" in said) == (device == "cpu")


def test_a_container_is_under_way_while_its_layers_are(device):
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(
        nn.Linear(64, 128), nn.ModuleList([nn.ReLU()])[0],
        nn.Linear(128, 64))).to(device)
    tracer = MemoryTracer(device=device)
    with tracer.trace(model):
        model(torch.ones(32, 64, device=device)).sum().backward()
    stats = tracer.get_layer_stats()
    for name, above in (("0", ""), ("1", ""), ("1.0", "1"), ("1.2", "1")):
        assert stats[name].peak_allocated <= stats[above].peak_allocated
        assert stats[name].duration_ms <= stats[above].duration_ms
    inside = stats["1.0"], stats["1.1"], stats["1.2"]
    assert stats["1"].duration_ms >= sum(one.duration_ms for one in inside)
    assert stats[""].duration_ms >= stats["0"].duration_ms + stats[
        "1"].duration_ms
    # Counts stay each layer's own, and so does what it owns.
    assert stats[""].total_allocations == stats["1"].total_allocations == 0
    assert tracer.get_owned_memory_per_layer()[""] == 0


def test_a_layer_that_is_called_often_is_the_union_of_its_nodes(device):
    layer = nn.Linear(16, 16)
    model = nn.Sequential(*[layer] * 50).to(device)
    tracer = MemoryTracer(device=device)
    with tracer.trace(model):
        model(torch.ones(4, 16, device=device)).sum().backward()
    stats = tracer.get_layer_stats()
    run = tracer.run()
    assert stats["0"].duration_ms <= stats[""].duration_ms
    assert stats[""].duration_ms <= run.duration / 1e6
    assert not _host._open  # nobody is kept for the end of the program
    shown = [event.event_type for event in tracer.events
             if event.layer_name == "0"]
    assert shown.count("layer_enter") == shown.count("layer_exit") >= 100


def test_a_container_has_the_peak_of_what_a_layer_is_charged_for_later():
    # As what is allocated in no call of the layer, and made the layer's.
    events = np.zeros(4, model_of_runs.EVENT)
    events["kind"] = [Kind.SCOPE_ENTER, Kind.SCOPE_LEAVE, Kind.ALLOC,
                      Kind.SEGMENT_ALLOC]
    events["scope"] = [1, 1, 2, 0]
    events["time"] = range(4)
    events["bytes"] = events["aux"] = [0, 0, 4096, 2 << 20]
    run = model_of_runs.Run(
        scopes=["(no scope)", "net", "net.layer"], events=events,
        devices=[model_of_runs.Device(0, start=())])
    walked = {0: replay.Replay(run, 0)}
    told = layers(run, walked, (run.scopes, [0, 1, 2]), parents=[0, 0, 1])
    assert [told[name]["peak_allocated"] for name in (
        "net", "net.layer")] == [4096, 4096]
    assert layers(run, walked)["net"]["peak_allocated"] == 0


_OPEN = """
import atexit, sys, torch
from stratalloc.compat.gpu_optimizer import MemoryTracer
# Called after what is registered later.
atexit.register(lambda: print(torch._C._autograd._profiler_enabled()))
model = torch.nn.Linear(8, 8)
tracing = MemoryTracer(device="cpu").trace(model)
tracing.__enter__()
model(torch.ones(2, 8)).sum().backward()
print(torch._C._autograd._profiler_enabled())
sys.exit(7)
"""


def test_a_trace_may_be_open_when_the_program_ends():
    here = os.path.dirname(os.path.dirname(stratalloc.__file__))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [here, *filter(None, sys.path)])}
    ended = subprocess.run([sys.executable, "-c", _OPEN], env=environment,
                           capture_output=True, text=True)
    assert ended.returncode == 7, ended
    assert ended.stdout.split() == ["True", "False"]
    assert "Traceback" not in ended.stderr, ended.stderr
