# SPDX-License-Identifier: Apache-2.0
"""Trouble from outside: the numbers stay right, or torch's own error says why.

Another process takes memory and gives it back, the host pins little or
nothing, copies are slow, the device breaks.
"""

import json

import pytest

from tests.system.e2e import running

pytestmark = pytest.mark.skipif(
    not running.SIMULATED, reason="a real GPU cannot be told to misbehave")

# 6.4 MiB of parameters, four times that in all.
_MODEL = (running.program("training.py"), "--foreach", "off", "--hidden", 128,
          "--heads", 4, "--layers", 8, "--words", 1000, "--batch", 2,
          "--steps", 3, "--device")
_MEMORY = "20MiB"


@pytest.fixture(name="cpu", scope="module")
def _cpu():
    return running.last_json(running.python(*_MODEL, "cpu"))


def _train(conf="host_budget:64MiB", options=(), **pressure):
    return running.on_device(_MEMORY, *_MODEL, "cuda", conf=conf,
                             options=options, **pressure)


def _same(done, cpu):
    ours = running.last_json(done)
    assert ours["losses"] == cpu["losses"]
    assert ours["sums"] == cpu["sums"]
    assert ours["moved"] == [] and ours["violations"] == []
    running.clean_device(ours["counters"])
    return ours


def test_another_process_takes_memory_and_gives_it_back(cpu):
    plain = _same(_train(), cpu)
    pressed = _same(_train(
        # Early: later the allocator has it all, and what is in use is safe.
        CUDASIM_TAKEN="0:4MiB:cuMemCreate:2;0:0:cudaEventRecord:400"), cpu)
    assert plain["counters"]["peak_used"] <= 20 << 20
    assert (pressed["report"]["tiers"]["bytes_evicted"]
            > plain["report"]["tiers"]["bytes_evicted"])


@pytest.mark.long  # between pinning all and pinning nothing
def test_a_host_that_pins_little(cpu):
    _same(_train(CUDASIM_PINNED="16MiB"), cpu)


def test_a_host_that_cannot_pin():
    """Nothing can leave the device: out of memory, said by torch's error."""
    done = _train(CUDASIM_PINNED="0")
    assert done.returncode == 1
    assert "torch.OutOfMemoryError" in done.stderr, done.stderr[-3000:]


@pytest.mark.long  # two runs, by the clock of a card
def test_slow_copies_change_the_time_only(cpu, tmp_path):
    seconds = []
    for slow in ({}, {"CUDASIM_SLOW_COPIES": "up:20;down:20"}):
        out = tmp_path / "report.json"
        # A card has workspaces of cuBLAS and cuBLASLt too; their defaults are
        # more than the GPU.
        _same(_train(options=("--card", "h200", "--json", out),
                     CUBLAS_WORKSPACE_CONFIG=":16:8",
                     CUBLASLT_WORKSPACE_SIZE="128", **slow), cpu)
        report = json.loads(out.read_text())
        assert "VIRTUAL" in report["simulated"]
        assert report["virtual"]["flops"] > 0
        seconds.append(report["virtual"]["seconds"])
    assert seconds[1] > 2 * seconds[0] > 0


@pytest.mark.parametrize("error", [700, 719])
def test_a_broken_device_ends_the_program_with_its_name(error):
    done = _train(CUDASIM_FAIL=f"cudaMemcpyAsync:30:{error}")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "Traceback" in done.stderr
    assert {700: "illegal", 719: "launch"}[error] in done.stderr
