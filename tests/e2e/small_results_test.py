# SPDX-License-Identifier: Apache-2.0
"""Small results that are kept while memory leaves and returns.

Sixty losses are 240 bytes; where each was made after another eviction they may
lie in handles that do not fit the device together. An operator over all of
them works all the same, and its result equals the CPU's, bit for bit.
"""

import json

import pytest

from tests.e2e import running

_CASES = ("losses", "evicted_losses", "norms", "clipping", "joined")


def _lines(done):
    return [json.loads(line)
            for line in running.must_work(done).strip().splitlines()
            if line.startswith("{")]


@pytest.fixture(name="cpu", scope="module")
def _cpu():
    return {line["case"]: line for line in _lines(running.python(
        running.program("small_results.py"), "--device", "cpu", *_CASES))}


@pytest.fixture(name="ours", scope="module")
def _ours():
    *lines, end = _lines(running.on_device(
        "24MiB", running.program("small_results.py"), *_CASES,
        conf="host_budget:512MiB", mode="async"))
    return {line["case"]: line for line in lines} | {"end": end}


@pytest.mark.parametrize("case", _CASES)
def test_one_operator_over_all_of_them(case, ours, cpu):
    assert "error" not in ours[case], ours[case]["error"]
    if running.SIMULATED:
        assert ours[case] == cpu[case]


def test_nothing_was_violated(ours):
    assert ours["end"]["violations"] == []
