# SPDX-License-Identifier: Apache-2.0
"""`stratalloc bench --json`: the shape of its file; no figure is judged."""

import json

from tests.e2e import running


def test_json(tmp_path):
    out = tmp_path / "bench.json"
    running.must_work(running.stratalloc(
        "bench", "--device", running.DEVICE, "--rounds", 4, "--json", out))
    values = json.loads(out.read_text())
    assert (values["machine"]["device"] == "simulated") == running.SIMULATED
    assert "commit" in values
    if running.SIMULATED:
        assert values["counters"]["launches_without_twin"] == 0
        assert values["counters"]["refused_calls"] == 0
    names = [row["name"] for row in values["benchmarks"]]
    assert len([name for name in names if name.startswith("malloc/free")]) == 3
    assert any(name.startswith("MiniLM") for name in names) == running.SIMULATED
    for row in values["benchmarks"]:
        assert {"name", "value", "unit", "baseline", "baseline_name", "ratio",
                "goal", "pass"} <= set(row)
        assert row["value"] > 0 and row["unit"] == "ns"
