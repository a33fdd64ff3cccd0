# SPDX-License-Identifier: Apache-2.0
"""`stratalloc bench --json`: the shape of its file; no figure is judged."""

import json
import struct
import zlib

from tests.system.e2e import running


def traced(path):
    """A trace of two blocks on two streams."""
    operations = [(0, 0, 0, 1 << 20), (2, 1, 0, 0), (0, 1, 1, 512),
                  (1, 0, 0, 0), (1, 0, 1, 0)]
    kinds, streams, blocks, sizes = zip(*operations)
    header = json.dumps({"version": 1, "operations": len(operations),
                         "blocks": 2, "streams": 2}).encode()
    columns = (bytes(kinds) + bytes(streams) + struct.pack("<5I", *blocks)
               + struct.pack("<2Q", sizes[0], sizes[2]))
    path.write_bytes(b"STRATRC1" + struct.pack("<I", len(header)) + header
                     + zlib.compress(columns))
    return path


def test_json(tmp_path):
    out = tmp_path / "bench.json"
    running.must_work(running.stratalloc(
        "bench", "--device", running.DEVICE, "--rounds", 2, "--trace",
        traced(tmp_path / "small.trace"), "--json", out))
    values = json.loads(out.read_text())
    assert (values["machine"]["device"] == "simulated") == running.SIMULATED
    assert "commit" in values
    if running.SIMULATED:
        assert values["counters"]["launches_without_twin"] == 0
        assert values["counters"]["refused_calls"] == 0
    groups = {}
    for row in values["benchmarks"]:
        assert {"name", "group", "value", "unit", "baseline", "baseline_name",
                "ratio", "goal", "pass"} <= set(row)
        assert row["value"] > 0 and row["unit"] == "ns"
        groups.setdefault(row["group"], []).append(row)
    allocations = [rows for group, rows in groups.items()
                   if group.startswith("allocations")]
    others = groups["scopes, operators, the simulated device"]
    assert "attribution" in " ".join(groups)
    assert len(allocations) == (3 if running.SIMULATED else 2)
    for rows in allocations:
        names = [row["name"] for row in rows]
        assert len(set(names)) == len(names)
        # Four sizes with and without events, two in two threads.
        assert len([name for name in names
                    if name.startswith("malloc/free")]) == 10
        for what in ("window", "producer and consumer", "trace small"):
            assert any(name.startswith(what) for name in names)
        for row in rows:
            assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
            assert row["per"] in ("pair", "operation")
            # A pair out of the cache asks the device for nothing.
            if running.SIMULATED and row["name"] == "malloc/free 4 MiB":
                assert row["ours_calls"] == 0 < row["native_calls"]
    levels = {row["name"]: row for row in groups["levels of telemetry"]}
    assert levels.pop("one event")["goal"] == "<= 25"
    assert len(levels) == 10
    assert "malloc/free 512 B, full, 40 frames" in levels
    names = [row["name"] for row in others]
    # Operands as far apart as those of a model: each is pinned by itself.
    assert {"op guard, two tensors in 2 handles",
            "op guard, list of 200 in 200 handles"} <= set(names)
    assert "import torch, STRATALLOC unset" in names
    assert any(name.startswith("MiniLM") for name in names) == running.SIMULATED
