# SPDX-License-Identifier: Apache-2.0
"""`stratalloc run --numbers off`: evictions and restores without numbers."""

import json
import os

from bazel import programs

_SCRIPT = """
import torch
from torch import nn

WIDTH = 4 << 10
with torch.device("cuda"):
    model = nn.Sequential(*[
        nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        for _ in range(22)])
x = torch.zeros(256, WIDTH, dtype=torch.bfloat16, device="cuda")
with torch.no_grad():
    for _ in range(2):
        y = model(x)
assert y.shape == x.shape and y.sum().item() == 0
"""


def test_a_model_that_does_not_fit(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    report = tmp_path / "report.json"
    values = {key: value for key, value in os.environ.items()
              if not key.startswith(("STRATALLOC", "CUDASIM"))}
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "512MiB", "--numbers", "off",
        "--conf", "host_budget:256MiB,disk_budget:0", "--json", report, script,
        env=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(numbers off)" in done.stderr
    assert "no number of this run means anything" in done.stderr
    result = json.loads(report.read_text())
    assert "(numbers off)" in result["simulated"]
    counters = result["counters"]
    assert counters["violations"] == 0
    assert counters["storages_outside"] == 0
    assert counters["launches_without_twin"] == 0
    assert counters["launches_with_twin"] > 0  # blocks were evicted
    assert 256 << 20 < counters["peak_used"] <= 512 << 20


_BEYOND_THE_MACHINE = """
import resource
import torch
from torch import nn

WIDTH = 16 << 10
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.device("cuda"):
    model = nn.Sequential(*[
        nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        for _ in range(12)])
x = torch.zeros(16, WIDTH, dtype=torch.bfloat16, device="cuda")
with torch.no_grad():
    for _ in range(2):
        x = model(x)
torch.cuda.synchronize()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 1 << 20, f"{grown} KiB of the host's memory"
"""


def test_evicted_memory_without_numbers_takes_no_pages(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_BEYOND_THE_MACHINE)
    report = tmp_path / "report.json"
    values = {key: value for key, value in os.environ.items()
              if not key.startswith(("STRATALLOC", "CUDASIM"))}
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", "2GiB", "--numbers", "off",
        "--conf", "host_budget:8TiB,disk_budget:0", "--json", report, script,
        env=values)
    assert done.returncode == 0, done.stdout + done.stderr
    # No machine has 8 TiB, and no byte is asked of it.
    assert "is more than the" not in done.stderr
    tiers = json.loads(report.read_text())["devices"][0]["tiers"]
    assert tiers["host_peak"] >= 4 << 30
