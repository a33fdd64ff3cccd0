# SPDX-License-Identifier: Apache-2.0
"""A job that fits moves nothing: small forms of `tests.system.starved.fits`.

Numbers off; whether a step is slow is printed by the program and asserted
nowhere.
"""

import json

import pytest

from tests.system.e2e import running

JOBS = ("resnet50", "llama", "alternating", "evaluation")
LONG = ("minilm", "gpt2")


# Per change: the fullest card and two steps.
@pytest.fixture(scope="module", name="rows", params=[
    pytest.param(((99,), 1), id="99"),
    pytest.param(((90, 95, 99), 3), id="all", marks=pytest.mark.long)])
def _rows(request, tmp_path_factory):
    """Of the jobs that pytest was asked for, by name."""
    shares, units = request.param
    jobs = list(dict.fromkeys(
        item.callspec.params["job"] for item in request.session.items
        if item.callspec.params["rows"] == request.param))
    file = tmp_path_factory.mktemp("fits") / "rows.json"
    done = running.python("-m", "tests.system.starved.fits", "--small", "--rounds",
                          1, "--warm", min(units, 2), "--units", units,
                          "--shares", *shares, "--jobs", ",".join(jobs),
                          "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with open(file, encoding="utf-8") as text:
        rows = json.load(text)["rows"]
    assert len(rows) == len(jobs) * len(shares)
    return rows


@pytest.mark.parametrize("job", JOBS + tuple(
    pytest.param(job, marks=pytest.mark.long) for job in LONG))
def test_nothing_moves(rows, job):
    for row in rows:
        if row["job"] == job:
            _moves_nothing(row)


def _moves_nothing(row):
    assert row["ours"] is not None, row["error"]
    assert row["native"]["retries"] == 0
    assert row["native"]["reserved"] <= row["card"]
    assert row["ours"]["faults"] == []
    assert row["ours"]["moved"] == {"out": 0, "in": 0}
