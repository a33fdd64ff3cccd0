# SPDX-License-Identifier: Apache-2.0
"""A profile measured on the simulated card is that card again."""

import json
import os
import subprocess
import sys

import pytest

_CARD_TEXT = """
import ctypes
from stratalloc import simulate
simulate.load("card", card="a100")
text = ctypes.create_string_buffer(1 << 16)
assert simulate.driver().cudasim_profile(0, text, len(text)) > 0
print(text.value.decode())
"""


def _python(*arguments):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True,
        check=False, timeout=300,
        env={**os.environ, "KIT_FOLDER": os.path.abspath("tests/gpu_kit")})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _measured(out, *arguments):
    _python("-m", "tests.gpu_kit.card_profile", "--quick", "--device", "sim",
            "--out", str(out), *arguments)
    return out


@pytest.fixture(name="profile", scope="module")
def _profile(tmp_path_factory):
    return _measured(tmp_path_factory.mktemp("profile") / "a100.json",
                     "--card", "a100")


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


# What a call costs and what each mapping or byte costs beside it, apart.
def test_it_has_the_costs_of_the_card(profile):
    found = json.loads(profile.read_text())
    card = json.loads(_python("-c", _CARD_TEXT))
    for name, cost in found["calls_ns"].items():
        assert cost == pytest.approx(
            card["calls_ns"].get(name, card["call_ns"]), rel=.001), name
    assert {"cuMemSetAccess", "cuMemUnmap", "cuMemCreate", "cudaHostAlloc",
            "cudaHostRegister"} <= set(found["calls_ns"])
    for figure in ("grant_ns", "unmap_ns", "create_ns_per_gib",
                   "pin_ns_per_gib", "host_checksum_gb_per_s", "operator_ns"):
        assert found[figure] == pytest.approx(card[figure], rel=.001), figure


# Over the card it was made of, where a figure that it has not is the card's,
# and over none.
@pytest.mark.parametrize("card", (
    "a100", pytest.param("generic", marks=pytest.mark.long)))
def test_a_device_with_it_costs_the_same(profile, tmp_path, card):
    again = _measured(tmp_path / "again.json", "--card", card,
                      "--profile", str(profile))
    wanted, found = (json.loads(path.read_text())
                     for path in (profile, again))
    assert found.pop("calls_ns") == pytest.approx(wanted.pop("calls_ns"))
    del wanted["about"], found["about"]
    assert found == pytest.approx(wanted, rel=.002)


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
