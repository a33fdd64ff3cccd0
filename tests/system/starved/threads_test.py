# SPDX-License-Identifier: Apache-2.0
"""Threads on a card that is too small for all at once: no error, ever.

Each program runs a fixed number of passes per thread; how fast says
`tests.system.starved.threads` and `tests.system.starved.serving`.
"""

import json

import pytest

from tests.system.e2e import running


def _result(tmp_path, module, *arguments):
    file = tmp_path / "result.json"
    done = running.python("-m", f"tests.system.starved.{module}", *arguments,
                          "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with open(file, encoding="utf-8") as text:
        return json.load(text)


def _long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize("name,passes", [
    ("pair", 15), ("pair_without_items", 4), ("pair_of_modules", 15),
    ("many", 2), ("addresses", 6), ("data_parallel", 3),
    _long("pair", 60), _long("pair_without_items", 20),
    _long("pair_of_modules", 60), _long("many", 8), _long("addresses", 30),
    _long("data_parallel_first", 3)])
def test_program(tmp_path, name, passes):
    row = _result(tmp_path, "threads", "--programs", name, "--passes",
                  passes)[name]
    assert row["error"] is None, row["error"]
    assert row["passes"] > 0
    assert row["errors"] == {}
    assert row["wrong"] == 0


@pytest.mark.parametrize("threads,requests", [
    (8, 24), _long(1, 64), _long(8, 64), _long(32, 64)])
def test_served(tmp_path, threads, requests):
    """A model 1.4x the card answers every request as it does alone."""
    row, = _result(tmp_path, "serving", "--threads", threads, "--requests",
                   requests)["rows"]
    assert row["error"] is None, row["error"]
    assert row["ours"]["answered"] == requests
    assert row["ours"]["moved"]["in"] > 0
