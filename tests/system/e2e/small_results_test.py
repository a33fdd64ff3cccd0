# SPDX-License-Identifier: Apache-2.0
"""Small results that are kept while memory leaves and returns.

Sixty losses are 240 bytes; where each was made after another eviction they may
lie in handles that do not fit the device together. An operator over all of
them works all the same, and its result equals the CPU's, bit for bit.
"""

import functools
import json

import pytest

from tests.system.e2e import running

_CASES = ("losses", "evicted_losses", "norms", "clipping", "joined")


def _lines(done):
    return [json.loads(line)
            for line in running.must_work(done).strip().splitlines()
            if line.startswith("{")]


@functools.cache
def _cpu(case):
    line, = _lines(running.python(
        running.program("small_results.py"), "--device", "cpu", case))
    return line


@functools.cache
def _ours(case):
    return _lines(running.on_device(
        "24MiB", running.program("small_results.py"), case,
        conf="host_budget:512MiB", mode="async"))


@pytest.mark.parametrize("case", [
    "losses", "evicted_losses",
    *(pytest.param(case, marks=pytest.mark.long) for case in _CASES[2:])])
def test_one_operator_over_all_of_them(case):
    ours, end = _ours(case)
    assert "error" not in ours, ours["error"]
    if running.SIMULATED:
        assert ours == _cpu(case)
    assert end["violations"] == []
