# SPDX-License-Identifier: Apache-2.0
"""Threads on a card that is too small for all at once: no error, ever.

Each program runs a fixed number of passes per thread; how fast says
`tests.starved.threads` and `tests.starved.serving`.
"""

import json

import pytest

from tests.e2e import running


def _result(tmp_path, module, *arguments):
    file = tmp_path / "result.json"
    done = running.python("-m", f"tests.starved.{module}", *arguments,
                          "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with open(file, encoding="utf-8") as text:
        return json.load(text)


@pytest.mark.parametrize("name,passes", [
    ("pair", 60), ("pair_without_items", 20), ("pair_of_modules", 60),
    ("many", 8), ("addresses", 30), ("data_parallel", 3),
    ("data_parallel_first", 3)])
def test_program(tmp_path, name, passes):
    row = _result(tmp_path, "threads", "--programs", name, "--passes",
                  passes)[name]
    assert row["error"] is None, row["error"]
    assert row["passes"] > 0
    assert row["errors"] == {}
    assert row["wrong"] == 0


@pytest.mark.parametrize("threads", [1, 8, 32])
def test_served(tmp_path, threads):
    """A model 1.4x the card answers every request as it does alone."""
    requests = 64
    row, = _result(tmp_path, "serving", "--threads", threads, "--requests",
                   requests)["rows"]
    assert row["error"] is None, row["error"]
    assert row["ours"]["answered"] == requests
    assert row["ours"]["moved"]["in"] > 0
