# SPDX-License-Identifier: Apache-2.0
"""A profile measured on the simulated card has the card's own figures."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(name="profile", scope="module")
def _profile(tmp_path_factory):
    out = tmp_path_factory.mktemp("profile") / "a100.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.card_profile", "--quick",
         "--device", "sim", "--card", "a100", "--out", str(out)],
        capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def test_it_finds_what_the_card_was_given(profile):
    found = json.loads(profile.read_text())
    assert "NOT a measurement" in found["about"]
    for figure, wanted in (
        ("pcie_up_gb_per_s", 25), ("pcie_down_gb_per_s", 26),
        ("pageable_up_gb_per_s", 7), ("hbm_gb_per_s", 2039 * 0.85),
        ("copy_ns", 1500), ("kernel_ns", 2000), ("memset_ns", 1500),
        ("fp64_tflops", 19.5 * 0.7), ("fp32_tflops", 19.5 * 0.7),
    ):
        assert found[figure] == pytest.approx(wanted, rel=0.05), figure
    assert found["multiprocessors"] == 108
    assert found["memory_bytes"] == 81152 << 20
    assert found["context_bytes"] == 420 << 20
    assert found["calls_ns"]["cuMemMap"] > 0


def test_the_device_takes_it(profile, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import torch\nx = torch.ones(1024, device='cuda')\n"
                       "print((x + x).sum().item())\n")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc", "run", "--simulate", "64MiB",
         "--profile", str(profile), "--json", str(report), str(program)],
        capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "2048.0" in done.stdout and "VIRTUAL" in done.stderr
    assert json.loads(report.read_text())["virtual"]["seconds"] > 0
