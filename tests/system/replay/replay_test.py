# SPDX-License-Identifier: Apache-2.0
"""The checked-in traces under each allocator, and a recording repeated."""

import os
import subprocess
import sys

import numpy
import pytest

from tests.system.replay import table, trace


def _record(tmp_path, workload):
    out = tmp_path / "again.trace"
    environment = dict(
        os.environ, CUDASIM_EVERY_PROCESS="1", CUDASIM_CARD="h200",
        CUDASIM_PHANTOM="1", CUDASIM_NUMBERS="off", HF_HUB_OFFLINE="1",
        PYTHONPATH=":".join((
            os.path.abspath("tests/simulator/cudasim/operator_bridge/every_process"),
            os.getcwd())))
    environment.pop("STRATALLOC_CONF", None)
    subprocess.run(
        [sys.executable, "-m", "tests.system.replay.record", "--out", str(out),
         f"tests/system/replay/workloads/{workload}.py"],
        env=environment, check=True, timeout=300)
    return trace.read(out)


def test_a_workload_gives_its_trace_again(tmp_path):
    again = _record(tmp_path, "unet")
    once = trace.read("tests/system/replay/traces/unet.trace")
    assert len(again.operations) == len(once.operations)
    assert numpy.array_equal(again.operations, once.operations)


def _peaks(name, allocator):
    measured = table.replay(f"tests/system/replay/traces/{name}.trace", allocator, 0)
    assert measured["reserved"] >= measured["allocated"] > 0
    assert measured["ours"] == (allocator in table.OURS)
    return measured


def test_the_natives_peaks_are_as_checked_in():
    for name in ("resnet", "prefetch"):
        for allocator in ("native", "expandable"):
            measured = _peaks(name, allocator)
            expected = table.natives()[name][allocator]
            assert {key: measured[key] for key in expected} == expected
            driver = "cuMemMap" if allocator == "expandable" else "cudaMalloc"
            assert driver in measured["calls"]


def test_peaks_against_both_natives():
    results = {}
    for path in table.traces():
        name = os.path.basename(path).removesuffix(".trace")
        results[name] = dict(table.natives()[name], **{
            allocator: _peaks(name, allocator) for allocator in table.OURS})
    assert len(results) >= 12
    for by in results.values():
        # Charged by the card: what maps memory is not free.
        for allocator in table.OURS:
            assert by[allocator]["card_ns"]["first"] > 0
    # Whoever misses a bar does so by no more than its cap (README.md).
    assert table.failures(results) == []


def _made(**reserved):
    return {allocator: {"reserved": value, "reserved_at_allocated": 100,
                        "allocated": 100}
            for allocator, value in reserved.items()}


@pytest.mark.parametrize("tiered, said", [
    (90, "has a cap and meets the bar"), (101, ""), (105, ""),
    (106, "the cap is 105")])
def test_a_trace_that_misses_the_bar_has_a_cap(monkeypatch, tiered, said):
    monkeypatch.setattr(table, "caps", lambda: {("x", "tiered"): 105})
    results = {"x": _made(native=200, expandable=100, stratalloc=100,
                          tiered=tiered)}
    failed = table.failures(results)
    assert [said in line for line in failed] == ([True] if said else [])
    results["y"] = _made(native=200, expandable=100, stratalloc=101, tiered=1)
    assert "the cap is None" in " ".join(table.failures(results))
