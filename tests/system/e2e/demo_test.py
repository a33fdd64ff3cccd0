# SPDX-License-Identifier: Apache-2.0
"""The demo: its JSON, its failure under sabotage, and its end by SIGKILL."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from stratalloc.demo import job
from stratalloc.sizes import format_size
from tests.system.e2e import running


@pytest.fixture(name="demo", scope="module")
def _demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo.json"
    done = running.stratalloc("demo", "--device", running.DEVICE, "--json",
                              out)
    return done, json.loads(out.read_text()) if out.exists() else None


def test_numbers(demo):
    done, values = demo
    running.must_work(done)
    assert values["native_error"].startswith("CUDA out of memory.")
    assert values["max_abs_diff_vs_cpu"] <= (0 if running.SIMULATED else 1e-3)
    assert len(values["queries"]) == 3 and values["sentences"] >= 200
    assert values["parameter_bytes"] == 90852864
    assert values["device_capacity"] == 64 << 20
    assert values["peak_allocated"] <= values["peak_reserved"] <= 64 << 20
    assert values["host_budget"] == 32 << 20
    assert (0 < values["host_peak"] <= values["host_reserved_peak"]
            <= values["host_budget"])
    assert values["host_used"] <= values["host_peak"]
    assert values["host_used"] <= values["host_reserved"]
    for key in ("bytes_evicted", "bytes_restored", "bytes_to_disk",
                "bytes_from_disk", "restored_before_use"):
        assert values[key] > 0, key
    assert (values["bridged_ops"] > 0) == running.SIMULATED
    assert values["launches_without_twin"] == 0
    assert values["device_ptrs_outside_arena"] == 0
    assert sum(row["live"] for row in values["layers"]
               if row["category"] == "parameter") >= 90852864


def test_answers_make_sense(demo):
    """On the simulated device the weights are always the real ones."""
    _, values = demo
    if not running.SIMULATED:
        pytest.skip("the kit may carry random weights")
    best = [query["answers"][0]["sentence"] for query in values["queries"]]
    assert "Wolves" in best[0] and "disk" in best[1] and "trains" in best[2]


def test_story(demo):
    done, _ = demo
    assert ("SIMULATED" in done.stdout) == running.SIMULATED
    for words in ("CUDA out of memory", "encoder.layer.0",
                  "stalls", "host, pinned", "all right"):
        assert words in done.stdout, done.stdout
    assert "\x1b[" not in done.stdout  # no colours off a terminal


@pytest.mark.long  # another whole demo
def test_sabotage_is_noticed(tmp_path):
    out = tmp_path / "demo.json"
    done = running.stratalloc(
        "demo", "--device", running.DEVICE, "--sabotage", "encoder.layer.3",
        "--json", out)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(out.read_text())["faults"]
    assert "FAILED" in done.stdout


def test_too_little_gpu_memory_says_how_much_it_takes_once():
    done = running.stratalloc("demo", "--device", running.DEVICE,
                              "--gpu-memory", "16MiB")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    (line,) = done.stderr.splitlines()
    assert "16 MiB" in line
    assert line.count(format_size(job.needed_memory())) == 1


@pytest.mark.long  # another whole demo
def test_as_much_gpu_memory_as_it_says_is_enough(tmp_path):
    if not running.SIMULATED:
        pytest.skip("a real one may need more, and it says `at least`")
    out = tmp_path / "demo.json"
    running.must_work(running.stratalloc(
        "demo", "--device", running.DEVICE, "--gpu-memory",
        str(job.needed_memory()), "--json", out))
    assert json.loads(out.read_text())["ok"]


def test_kill_leaves_nothing(tmp_path):
    """SIGKILL after the spill file was used: no file is left behind."""
    reader, writer = os.pipe()
    work = tmp_path / "spill"
    work.mkdir()
    job = subprocess.Popen(
        [sys.executable, "-m", "stratalloc.demo.job", "--phase", "stratalloc",
         "--device", running.DEVICE, "--gpu-memory", str(64 << 20),
         "--host-budget", str(16 << 20), "--rounds", "1000",
         "--events", str(writer), "--out", str(tmp_path / "out")],
        pass_fds=(writer,), env=running.environment(TMPDIR=str(work)))
    os.close(writer)
    try:
        with os.fdopen(reader) as events:
            # After two batches every layer has left once.
            seen = 0
            while seen < 3:
                line = events.readline()
                assert line, f"ended with {job.wait()}"
                seen += json.loads(line)["event"] == "progress"
            spill = _spill_files(job.pid, str(work))
            assert spill, os.listdir(f"/proc/{job.pid}/fd")
            for status in spill:
                assert status.st_nlink == 0
                assert stat.S_IMODE(status.st_mode) == 0o600
                assert status.st_size > 0
            assert _files(work) == []
            job.send_signal(signal.SIGKILL)
            job.wait()
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    assert job.returncode == -signal.SIGKILL
    assert _files(work) == []


def _files(folder):
    """Everything but folders, which torch makes for its caches."""
    return [os.path.join(path, name)
            for path, _, names in os.walk(folder) for name in names]


def _spill_files(pid, folder):
    """Status of each deleted regular file of `folder` the process holds."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            target = os.readlink(path)
            if target.startswith(folder) and target.endswith(" (deleted)"):
                found.append(os.stat(path))
        except FileNotFoundError:
            continue
    return found
