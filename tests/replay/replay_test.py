# SPDX-License-Identifier: Apache-2.0
"""The checked-in traces under each allocator, and a recording repeated."""

import os
import subprocess
import sys

import numpy

from tests.replay import table, trace


def _record(tmp_path, workload):
    out = tmp_path / "again.trace"
    environment = dict(
        os.environ, CUDASIM_EVERY_PROCESS="1", CUDASIM_CARD="h200",
        CUDASIM_PHANTOM="1", CUDASIM_NUMBERS="off", HF_HUB_OFFLINE="1",
        PYTHONPATH=":".join((
            os.path.abspath("tests/cudasim/operator_bridge/every_process"),
            os.getcwd())))
    environment.pop("STRATALLOC_CONF", None)
    subprocess.run(
        [sys.executable, "-m", "tests.replay.record", "--out", str(out),
         f"tests/replay/workloads/{workload}.py"],
        env=environment, check=True, timeout=300)
    return trace.read(out)


def test_a_workload_gives_its_trace_again(tmp_path):
    again = _record(tmp_path, "unet")
    once = trace.read("tests/replay/traces/unet.trace")
    assert len(again.operations) == len(once.operations)
    assert numpy.array_equal(again.operations, once.operations)


def test_peaks_against_both_natives():
    results = {}
    for path in table.traces():
        name = os.path.basename(path)
        results[name] = {
            allocator: table.replay(path, allocator, 0)
            for allocator in table.ALLOCATORS
        }
        for measured in results[name].values():
            assert measured["reserved"] >= measured["allocated"] > 0
            assert measured["calls"]
        # Three allocators, not one three times.
        assert "cudaMalloc" in results[name]["native"]["calls"]
        assert "cuMemMap" in results[name]["expandable"]["calls"]
        assert results[name]["stratalloc"]["ours"]
        assert not results[name]["native"]["ours"]
    assert not table.misses(results)
