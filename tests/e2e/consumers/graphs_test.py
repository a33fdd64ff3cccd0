# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.graph, make_graphed_callables and MemPool, unpatched."""

from tests.e2e.consumers import asking

KIB, MIB = 1 << 10, 1 << 20


def test_graphs_and_pools():
    saw = asking.same_everywhere(
        "graphs.graph", "graphs.graphed_callables", "graphs.mem_pool")
    assert saw["graph"][-1] == 3.0
    assert saw["graphed_callables"]["same"]
    reused, inside, uses, _, allocated, *_ = saw["mem_pool"]
    assert reused and inside == [4 * MIB, 12 * MIB]
    assert uses == 1 and allocated == 8 * MIB
