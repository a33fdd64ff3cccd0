# SPDX-License-Identifier: Apache-2.0
"""Whatever call of the driver fails under a starved model: nobody dies, no byte
is lost, and every exception says what it was."""

import json

import pytest

from tests.e2e import running
from tests.starved import driver_errors


# Unknown: the program goes on; illegal address: the device is lost.
@pytest.mark.parametrize("error", (999, 700))
def test_each_call_of_the_driver(tmp_path, error):
    file = tmp_path / "rows.json"
    done = running.python("-m", "tests.starved.driver_errors", "--errors",
                          error, "--nth", "2", "--situations", "use",
                          "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * len(driver_errors.CALLS)
    assert [(row["call"], row["forever"], row["red"]) for row in rows
            if row["red"]] == []
    assert any(row["sentences"] for row in rows)
    assert any(row["lost"] for row in rows) == (error == 700)


def test_a_row_knows_what_is_red():
    row = {"same": True, "faults": [], "sentences": ["RuntimeError: x"]}
    assert driver_errors.red(row) == ""
    for change in ({"same": False}, {"faults": ["a violation"]},
                   {"sentences": ["RuntimeError: "]}, {"error": "x"}):
        assert driver_errors.red({**row, **change}), change
