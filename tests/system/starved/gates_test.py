# SPDX-License-Identifier: Apache-2.0
"""A stream that stands still keeps no operator that does not need it.

The order of events is judged, not the time they take. On an engine that waits
for a stream under a lock of all devices, each of these gates gives up.
"""

import json

import pytest

from tests.system.e2e import running
from tests.system.starved import gates


@pytest.mark.parametrize("name", list(gates.PROGRAMS))
def test_operators_beside_a_closed_gate_return(tmp_path, name):
    file = tmp_path / "result.json"
    done = running.python("-m", "tests.system.starved.gates", "--programs",
                          name, "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    row, = json.loads(file.read_text()).values()
    assert row["error"] is None, row["error"]
    assert row["wrong"] == 0
    assert row["moved"]["in"] > 0


@pytest.mark.parametrize("events,found", [
    (["a", "b"], []),
    (["b", "a"], ["'b' came before 'a'"]),
    (["a"], ["'b' did not happen"]),
    (["gate gave up", "a", "b"], ["gate gave up"]),
])
def test_events_out_of_order_are_named(events, found):
    assert gates.out_of_order(events, [("a", "b")]) == found
