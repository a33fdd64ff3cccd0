# SPDX-License-Identifier: Apache-2.0
"""The end of a run in one line: what it says, and when there is none."""

import os
import re
import sys

import pytest

from bazel import programs
from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402

import stratalloc  # noqa: E402
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from stratalloc._live import last_line as _last_line  # noqa: E402
from stratalloc._live import sample  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _begun():
    _last_line.begin()
    yield
    stratalloc.telemetry_level("counters")


def _move():
    weights = torch.nn.Parameter(torch.ones(2 * MIB, device="cuda"))
    assert stratalloc.evict(weights) == 8 * MIB
    stratalloc.restore(weights)


def test_counters_alone_say_what_moved_and_who_waited(monkeypatch):
    monkeypatch.setattr(sample, "moved", lambda: {
        "out": 6 * MIB, "in": 4 * MIB, "to_disk": 0, "from_disk": 0,
        "stalls": 2, "stall_ns": 1})
    assert re.fullmatch(
        r"6 MiB left the device and 4 MiB came back; threads waited 1e-09 "
        r"thread-seconds in \S+ s", _last_line.line())
    monkeypatch.setattr(sample, "moved", lambda: {
        "out": 6 * MIB, "in": 4 * MIB, "to_disk": 2 * MIB, "from_disk": MIB,
        "stalls": 2, "stall_ns": int(500e9)})
    pid, began = _last_line._began
    monkeypatch.setattr(_last_line, "_began", (pid, began - 100))
    assert _last_line.line() == (
        "6 MiB left the device and 4 MiB came back, 2 MiB to disk and 1 MiB "
        "from disk; threads waited 500 thread-seconds in 100 s")


def test_it_is_what_the_core_counted():
    before = sample.moved()
    _move()
    after = sample.moved()
    assert {key: after[key] - before[key] for key in (
        "out", "in", "to_disk", "from_disk")} == {
        "out": 8 * MIB, "in": 8 * MIB, "to_disk": 0, "from_disk": 0}


def test_events_give_the_verdict():
    stratalloc.telemetry_level("events")
    _move()
    said = _last_line.line(only_recorded=True)
    assert "8 MiB left the device and 8 MiB came back, from the host at" in said
    assert "no verdict" not in said and "\n" not in said


@pytest.mark.parametrize("break_it, said", [
    (lambda patch: patch.setattr(_last_line, "MOST_EVENTS", 0),
     r"no verdict: \d+ events are more than are read at the end; "
     r"`stratalloc report` reads all of a recording \(--record"),
    (lambda patch: [patch.setitem(sys.modules, name, None)
                    for name in [*sys.modules, "numpy"] if name == "numpy"
                    or name.startswith("stratalloc.telemetry.")],
     "no verdict: it needs numpy"),
    (lambda patch: patch.setattr(_last_line.tempfile, "TemporaryDirectory",
                                 _full), "no verdict: No space left"),
    (lambda patch: patch.setattr(_last_line._core, "write_recording", _lost),
     "no verdict: 7 events were lost")])
def test_without_a_verdict_counters_are_told_and_why(monkeypatch, break_it,
                                                     said):
    stratalloc.telemetry_level("events")
    _move()
    break_it(monkeypatch)
    found = _last_line.line()
    assert re.search(said, found), found
    assert re.match(r"\S+ MiB left the device and ", found)


def _full(prefix):
    raise OSError("No space left on device")


_written = _last_line._core.write_recording


def _lost(number, path, about, redact, over):
    from stratalloc.telemetry import recording

    _written(number, path, about, redact, over)
    read = recording.read

    def read_once(path):
        recording.read = read
        run = read(path)
        run.dropped = 7
        return run

    recording.read = read_once


def test_when_there_is_none(monkeypatch):
    _move()
    counted = sample.moved()
    monkeypatch.setattr(sample, "moved", lambda: counted)
    assert _last_line.line() is not None
    assert _last_line.line(only_recorded=True) is None, "level counters"
    stratalloc.telemetry_level("off")
    assert _last_line.line() is None
    stratalloc.telemetry_level("counters")
    child = os.fork()
    if child == 0:
        os._exit(0 if _last_line.line() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    monkeypatch.setattr(sample, "moved", lambda: dict.fromkeys(
        ("out", "in", "to_disk", "from_disk", "stalls", "stall_ns"), 0))
    assert _last_line.line() is None, "nothing moved"
    monkeypatch.setattr(_last_line, "_began", None)
    assert _last_line.line() is None, "it is not our program"


def test_a_broken_end_changes_nothing(monkeypatch, capfd):
    def lost():
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(sample, "moved", lost)
    _last_line.tell()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stderr", None)
    _last_line.begin()
    _last_line.tell()
    assert capfd.readouterr() == ("", "")


_PROGRAM = """
from stratalloc import simulate
simulate.loaded() or simulate.load("64MiB")
import os, sys, torch, stratalloc
w = torch.nn.Parameter(torch.ones(1 << 21, device="cuda"))
stratalloc.evict(w)
stratalloc.restore(w)
if os.fork() == 0:
    sys.exit(0)
os.wait()
[][1]
"""


def _lines(folder, *command, **more):
    (folder / "script.py").write_text(_PROGRAM)
    done = programs.run(*command, cwd=folder, env={**os.environ, **more})
    assert done.returncode == 1 and done.stdout == ""
    return done.stderr.splitlines()


def test_run_tells_it_once_and_last_but_one(tmp_path):
    lines = _lines(tmp_path, "-m", "stratalloc", "run", "--simulate", "64MiB",
                   "--record", "f.strata", "script.py")
    assert sum("left the device" in line for line in lines) == 1, lines
    assert lines[-3].startswith("IndexError")
    assert lines[-2].startswith("stratalloc: ") and (
        ": 8 MiB left the device and 8 MiB came back" in lines[-2])
    assert lines[-1].startswith("stratalloc: simulated: ")


@pytest.mark.parametrize("level, told", [("events", 1), ("counters", 0)])
def test_the_environment_tells_it_where_events_are_recorded(level, told,
                                                            tmp_path):
    lines = _lines(tmp_path, "script.py", STRATALLOC="1",
                   STRATALLOC_CONF=f"telemetry:{level}")
    assert sum("left the device" in line for line in lines) == told, lines
    assert lines[-1 - told].startswith("IndexError")
