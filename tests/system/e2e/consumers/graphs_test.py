# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.graph, make_graphed_callables and MemPool, unpatched."""

import math

import pytest

from tests.system.e2e.consumers import asking

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize("ways", asking.EVERY)
def test_graphs_and_pools(ways):
    saw = asking.same_everywhere(
        ways, "graphs.graph", "graphs.graphed_callables", "graphs.mem_pool")
    captured, eager, on_cpu = (
        saw["graph"][name] for name in ("graph", "eager", "cpu"))
    assert captured["results"] == eager["results"]
    assert captured["parameters"] == eager["parameters"]
    assert captured["afterwards"] == captured["results"][-1]
    assert captured["beside"] == 3.0
    # The optimizer's form for captures rounds otherwise than that of the CPU.
    assert len(on_cpu["results"]) == 5
    for found, expected in zip(captured["results"], on_cpu["results"]):
        assert all(map(math.isfinite, expected))
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    called = saw["graphed_callables"]
    assert all(map(math.isfinite, called["cpu"][0]))
    assert called["graphed"] == called["eager"] == called["cpu"]
    reused, inside, uses, _, allocated, *_ = saw["mem_pool"]
    assert reused and inside == [4 * MIB, 12 * MIB]
    assert uses == 1 and allocated == 8 * MIB
