# SPDX-License-Identifier: Apache-2.0
"""Our snapshots in torch's own tools: the command and its functions."""

import pickle

import pytest

from torch.cuda import _memory_viz as _viz

import formats
import made_runs
from bazel import programs
from stratalloc.telemetry.replay import Replay


def _lines(text):
    return text  # in place of flamegraph.pl, which the tool would download


@pytest.fixture(params=["story", "hostile", "random", "start"])
def run(request):
    if request.param == "random":
        return made_runs.make(3, 300)[0]
    if request.param == "start":
        return made_runs.make(3, 300, first=150)[0]
    return getattr(made_runs, request.param)()


@pytest.fixture
def path(run, tmp_path):
    return formats.export(run, "snapshot.pickle", tmp_path)


def test_the_functions_take_it_and_add_up(run, path):
    made = pickle.loads(path.read_bytes())
    replay = Replay(run, 0)
    for function in (_viz.memory, _viz.segments):
        total = sum(int(line.rpartition(" ")[2])
                    for line in function(made, _lines).split("\n")
                    if line.rpartition(" ")[2].isdecimal()
                    and line.startswith("stream_"))
        assert total >= replay.reserved.last() > 0
    said = _viz.segsum(made)
    assert "total_reserved" in said
    trace = _viz.trace(made)
    assert trace.count("cudaMalloc") == sum(
        event["action"] == "segment_alloc"
        for trace in made["device_traces"] for event in trace)
    assert "MemoryViz" in _viz.trace_plot(made)
    assert "MemoryViz" in _viz.segment_plot(made)


def test_two_of_them_are_compared(run, path, capsys):
    made = pickle.loads(path.read_bytes())
    other = pickle.loads(path.read_bytes())["segments"]
    other = [one for one in other if one["device"] == 0][1:]
    _viz.compare(made["segments"], other, _lines)
    first = made["segments"][0]["address"]
    assert str(first) in capsys.readouterr().out.split("\n")[0]


@pytest.mark.parametrize("verb", ["stats", "trace", "trace_plot",
                                  "segment_plot"])
def test_the_command_takes_it(verb, tmp_path):
    path = formats.export(made_runs.hostile(), "snapshot.pickle", tmp_path)
    out = tmp_path / "out.html"
    plot = ["-o", str(out)] if verb.endswith("plot") else []
    done = programs.run("-m", "torch.cuda._memory_viz", verb, path, *plot)
    assert done.returncode == 0, done.stderr[-2000:]
    assert out.exists() if plot else len(done.stdout) > 200
