# SPDX-License-Identifier: Apache-2.0
"""A job that fits moves nothing: small forms of `tests.starved.fits`.

Numbers off; whether a step is slow is printed by the program and asserted
nowhere.
"""

import json

import pytest

from tests.e2e import running

JOBS = ("minilm", "resnet50", "gpt2", "llama", "alternating", "evaluation")


@pytest.fixture(scope="module", name="rows")
def _rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("fits") / "rows.json"
    done = running.python("-m", "tests.starved.fits", "--small", "--rounds",
                          "1", "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with open(file, encoding="utf-8") as text:
        return {(row["job"], row["share"]): row
                for row in json.load(text)["rows"]}


@pytest.mark.parametrize("share", [90, 95, 99])
@pytest.mark.parametrize("job", JOBS)
def test_nothing_moves(rows, job, share):
    row = rows[job, share]
    assert row["ours"] is not None, row["error"]
    assert row["native"]["retries"] == 0
    assert row["native"]["reserved"] <= row["card"]
    assert row["ours"]["faults"] == []
    assert row["ours"]["moved"] == {"out": 0, "in": 0}
