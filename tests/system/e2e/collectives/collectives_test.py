# SPDX-License-Identifier: Apache-2.0
"""Operands of collectives stay until the collective is over, whoever evicts.

A hundred seeds take a minute or two each, by hand (programs.py); here a few.
"""

import json

import pytest

from tests.system.e2e import running


def _rows(tmp_path, module, seeds, *names):
    file = tmp_path / "table.json"
    running.must_work(running.python(
        "-m", f"tests.system.e2e.collectives.{module}", *names, "--seeds", seeds,
        "--json", file))
    return json.loads(file.read_text())


def _all_right(rows):
    for name, row in rows.items():
        assert row["faults"] == {}, name
        assert row["wrong"] == 0, name
        assert row["out"] > 0, name  # else nobody evicted anything


_LATE = ("async_op", "dropped", "synchronous", "functional", "coalescing",
         "captured", "ddp", "fsdp")


def test_kernels_of_every_kind_that_run_late(tmp_path):
    rows = _rows(tmp_path, "programs", "1", *_LATE)
    _all_right(rows)
    assert tuple(rows) == _LATE


@pytest.mark.long
@pytest.mark.parametrize("name", _LATE)
def test_kernels_that_run_late(tmp_path, name):
    """As NCCL's: on a stream of the backend's, after the call returned."""
    _all_right(_rows(tmp_path, "programs", "1-3", name))


@pytest.mark.parametrize("name, seeds", [
    ("async_op", "1"), ("fsdp", "1"),
    *(pytest.param(name, "1-2", marks=pytest.mark.long)
      for name in ("ddp", "fsdp", "async_op"))])
def test_two_processes_over_gloo(tmp_path, name, seeds):
    _all_right(_rows(tmp_path, "ranks", seeds, name))
