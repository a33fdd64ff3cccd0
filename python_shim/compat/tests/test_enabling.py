# SPDX-License-Identifier: Apache-2.0
"""Importing a compat module enables us, or says what is lost and goes on."""

import os

from bazel import programs

_SIMULATE = "from stratalloc import simulate\nsimulate.load('64MiB')\n"
_ASK = """
from stratalloc.compat import _enabling
ours = _enabling.at_import("memlord", "the numbers are its own")
again = _enabling.at_import("memlord", "the numbers are its own")
import stratalloc
assert ours == again == stratalloc.is_enabled()
print("ours" if ours else "native")
"""


def _run(program, **environment):
    return programs.run("-c", program, env={**os.environ, **environment})


def test_on_a_gpu_it_is_ours_and_nothing_is_said():
    child = _run(_SIMULATE + _ASK)
    assert (child.stdout, child.stderr) == ("ours\n", "")


def test_without_a_gpu_nothing_is_ours_and_nothing_is_said():
    child = _run(_ASK, CUDA_VISIBLE_DEVICES="")
    assert (child.stdout, child.stderr) == ("native\n", "")


def test_too_late_it_says_once_why_and_what_is_lost():
    child = _run(_SIMULATE + "import torch\ntorch.cuda.init()\n" + _ASK)
    assert child.stdout == "native\n"
    assert child.stderr.count("\n") == 1
    assert "memlord works over torch's own allocator" in child.stderr
    assert "the numbers are its own" in child.stderr
    assert "CUDA is already initialised" in child.stderr


def test_stratalloc_0_is_said_once_and_what_is_lost():
    child = _run(_SIMULATE + _ASK, STRATALLOC="0")
    assert child.stdout == "native\n" and child.stderr.count("\n") == 1
    assert "the numbers are its own" in child.stderr
    assert child.stderr.endswith("STRATALLOC=0 in the environment\n")


def test_a_bad_setting_is_said_and_strict_raises():
    bad = {"STRATALLOC_CONF": "gpu_limti:1GiB"}
    child = _run(_SIMULATE + _ASK, **bad)
    assert child.stdout == "native\n" and "gpu_limti" in child.stderr
    child = _run(_SIMULATE + _ASK, STRATALLOC_STRICT="1", **bad)
    assert child.returncode == 1 and "ValueError" in child.stderr
