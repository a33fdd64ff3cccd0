# SPDX-License-Identifier: Apache-2.0
"""Data of a report, for tests of its sums, bounds and pages."""

import json

from stratalloc.telemetry.report.data import data

MIB = 1 << 20


def device_of(run):
    told = data([("run", run)])
    assert json.loads(json.dumps(told, allow_nan=False))["runs"]
    return told["runs"][0]["devices"][0]


def adds_up(node):
    inside = node.get("in")
    if inside:
        assert sum(one["b"] for one in inside) == node["b"]
        assert sum(one["c"] for one in inside) == node["c"]
        for one in inside:
            adds_up(one)
