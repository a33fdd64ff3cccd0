# SPDX-License-Identifier: Apache-2.0
"""The examples of memory_management: the README's command runs all of them, on
a simulated card and without one. And what a manager costs can be measured."""

import json
import os
import pathlib
import re
import shlex

import pytest

from bazel import programs

_EXAMPLE = pathlib.Path("python_shim/examples/memory_management")
_README = (_EXAMPLE / "README.md").read_text()


def _run(*command, **environment):
    done = programs.run(*command, cwd=_EXAMPLE,
                        env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_run_on_a_card_that_is_too_small():
    command, = re.findall(r"^stratalloc (run .*)$", _README, re.MULTILINE)
    text = _run("-m", "stratalloc", *shlex.split(command))
    names = re.findall(r"^\| `(\w+)`", _README, re.MULTILINE)
    assert re.findall(r"^(\w+): ", text, re.MULTILINE) == names
    # As the README shows it: nothing stays where it arrives.
    shown = re.search(r"112 MiB of weights: .*", _README).group()
    assert shown in text
    right = re.search(r"(\d+) of 60 right; [\d.]+ ms for a review", text)
    assert int(right.group(1)) > 50


def test_they_run_without_a_card():
    text = _run("examples.py", "basic", "manual", CUDA_VISIBLE_DEVICES="")
    assert "0 MiB host, 112 MiB disk" in text and "bit for bit" in text


@pytest.mark.long
def test_what_a_manager_costs_is_told_with_its_interval(tmp_path):
    out = tmp_path / "managed.json"
    _run("-m", "stratalloc.bench.managed", "--rounds", "2", "--steps", "1",
         "--json", str(out))
    values = json.loads(out.read_text())
    assert values["ns"].keys() == {"wall", "processor"}
    for pair in ("ours/native", "managed/native", "managed/ours"):
        for middle, low, high in values[pair].values():
            assert 0 < low <= middle <= high
