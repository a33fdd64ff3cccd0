# SPDX-License-Identifier: Apache-2.0
"""Whatever call of the driver fails under a starved model: nobody dies, no byte
is lost, and every exception says what it was."""

import json

import pytest

from tests.system.e2e import running
from tests.system.starved import driver_errors


_SOME = driver_errors.CALLS[::6]


# Unknown: the program goes on; illegal address: the device is lost.
@pytest.mark.parametrize("error,duration,calls", [
    pytest.param(999, "once", driver_errors.CALLS[1::2],
                 id="unknown-once-half"),
    pytest.param(999, "always", _SOME, id="unknown-always-some"),
    pytest.param(700, "once", _SOME, id="illegal_address-once-some"),
    pytest.param(999, "once", driver_errors.CALLS,
                 id="unknown-once-all", marks=pytest.mark.long),
    pytest.param(999, "always", driver_errors.CALLS,
                 id="unknown-always-all", marks=pytest.mark.long),
    pytest.param(700, "once", driver_errors.CALLS,
                 id="illegal_address-once-all", marks=pytest.mark.long),
    pytest.param(700, "always", driver_errors.CALLS,
                 id="illegal_address-always-all", marks=pytest.mark.long),
])
def test_each_call_of_the_driver(tmp_path, error, duration, calls):
    file = tmp_path / "rows.json"
    done = running.python("-m", "tests.system.starved.driver_errors", "--errors",
                          error, "--nth", "2", "--situations", "use",
                          "--durations", duration, "--calls", *calls,
                          "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    rows = json.loads(file.read_text())["rows"]
    assert [row["call"] for row in rows] == list(calls)
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
