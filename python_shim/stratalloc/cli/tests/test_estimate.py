# SPDX-License-Identifier: Apache-2.0
"""`stratalloc estimate`: peaks of real sizes, on a card that nobody has."""

import json
import os
import re

import pytest

from bazel import programs

# 12 layers of 8192 x 8192 float32, 256 MiB each, made on the device: the host
# would compute 3 GiB of random numbers.
SCRIPT = """
import sys
import torch
from torch import nn

net = type("Net", (nn.Sequential,), {})(
    *[nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(12)])
optimizer = torch.optim.SGD(net.parameters(), .1, foreach=False)
for _ in range(2):
    net(torch.randn(64, 8192, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(len(sys.argv) - 1)
"""
LAYER = 8192 * 8192 * 4


@pytest.fixture(name="estimate")
def _estimate(tmp_path):
    def run(*options, text=SCRIPT, arguments=()):
        script = tmp_path / "script.py"
        script.write_text(text)
        return programs.run("-m", "stratalloc", "estimate", *options, script,
                            *arguments, env={**os.environ, "LINES": "30"})
    return run


def test_the_first_step_has_no_more_state_than_it_keeps(estimate):
    """AdamW's two moments of each weight; what else it makes is temporary."""
    text = SCRIPT.replace("SGD(net.parameters(), .1, foreach=False)",
                          "AdamW(net.parameters())")
    done = estimate("--card", "a100", "--json", "-", text=text)
    device, = json.loads(done.stdout)["devices"]
    state = [row["bytes"] for row in device["rows"]
             if row["category"] == "optimizer_state"]
    assert sum(state) == 12 * 2 * LAYER


def test_the_context_is_not_for_programs(estimate):
    """Two MiB less than the card has are more than it has for a script."""
    whole = """
import torch
capacity = int(CAPACITY)
torch.empty(capacity - (2 << 20), dtype=torch.uint8, device="cuda")
"""
    def ask(size):
        done = estimate("--card", "t4", "--json", "-",
                        text=whole.replace("CAPACITY", str(size)))
        found = json.loads(done.stdout)
        device, = found["devices"]
        return found["capacity"], device["available"], device["fits"]

    capacity, available, fits = ask(15655239680)
    assert capacity == 15655239680 and not fits
    assert available == capacity - (110 << 20)
    assert ask(available) == (capacity, available, True)


def test_what_fits_and_what_is_missing(estimate):
    done = estimate("--card", "a100", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    device, = found["devices"]
    assert device["fits"] and found["capacity"] > 70 << 30
    # Parameters and gradients, and less than a layer of anything else.
    assert 24 * LAYER < device["peak_allocated"] < 25 * LAYER
    assert device["may_leave"] == 24 * LAYER
    assert sum(row["bytes"] for row in device["rows"]) == (
        device["peak_allocated"])
    larger = SCRIPT.replace("range(12)", "range(33)")
    done = estimate("--card", "t4", text=larger)
    assert done.returncode == 0
    assert re.search(r"t4 has 14.58 GiB, 14.\d+ GiB of it for programs: does not "
                     "fit, ", done.stdout), done.stdout
    assert "16.50 GiB of it may leave" in done.stdout
    assert re.search(r"\d–3\d × 3\d ", done.stdout)


_PARTS = """
import torch, stratalloc
kept = []
for i in range(40):
    with stratalloc.scope(f"part{i}", category="buffer"):
        kept.append(torch.ones((i + 1) << 10, device="cuda"))
"""


@pytest.mark.parametrize("options, parts, last", [
    ((), 24, "and 16 smaller, 544 KiB; --all or --depth N has them"),
    (("--all",), 40, "  part0                  4 KiB  buffer 4 KiB"),
    (("--depth", "0"), 0, "total                 3.20 MiB  buffer 3.20 MiB"),
    (("--depth", "1"), 40, "  part0                  4 KiB  buffer 4 KiB")])
def test_all_lines_and_levels(estimate, options, parts, last):
    done = estimate("--card", "t4", *options, text=_PARTS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("needs 3.20 MiB, ") and lines[-1] == last
    assert lines[1] == "device 0 at its peak     bytes  by category"
    assert sum("part" in line for line in lines) == parts


def test_how_the_script_ends(estimate):
    done = estimate("--card", "t4", arguments=("a", "b"))
    assert done.returncode == 2 and "needs 6" in done.stdout
    assert "ended with code 2" in done.stderr
    done = estimate("--card", "t4", text=SCRIPT.replace(
        "sys.exit", "[][1]; sys.exit"))
    assert done.returncode == 1 and "IndexError" in done.stderr
    assert "needs 6" in done.stdout
    done = estimate("--card", "t4", text="print('nothing')")
    assert done.returncode == 0
    assert "the script did not use the GPU" in done.stdout


@pytest.mark.parametrize("options, said", [
    ((), "--card NAME"),
    (("--card", "b52"), "b52"),
    (("--card", "t4", "--profile", "none.json"), "none.json"),
    (("--card", "t4", "--numbers", "maybe"), "maybe"),
    (("--card", "t4", "--depth", "-1"), "no number of levels"),
    (("--card", "t4", "--depth", "two"), "no number of levels"),
    (("--card", "t4", "--depth"), "--depth"),
])
def test_what_cannot_be_estimated(estimate, options, said):
    done = estimate(*options)
    assert done.returncode == 2 and said in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
