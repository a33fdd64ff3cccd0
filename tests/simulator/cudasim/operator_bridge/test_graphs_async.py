# SPDX-License-Identifier: Apache-2.0
"""Graphs in async mode: every replay is queued work that the checker sees."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB", mode="async")

# pylint: disable=wrong-import-position
import threading

import pytest
import torch
from torch import nn


def _capture(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@pytest.mark.parametrize("seed", range(4))
def test_a_training_step_equals_the_cpu(seed):
    DEVICE.cuda.cudasim_set_seed(seed)
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    cuda = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).cuda()
    cuda.load_state_dict(cpu.state_dict())
    data = torch.randn(5, 10, 8).pin_memory()
    side = torch.cuda.Stream()

    def step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizer = torch.optim.SGD(cpu.parameters(), lr=0.1)
    expected = [step(cpu, optimizer, x).item() for x in data]
    optimizer = torch.optim.SGD(cuda.parameters(), lr=0.1)
    x = torch.zeros(10, 8, device="cuda")
    x.copy_(data[0])
    losses = [step(cuda, optimizer, x).item()]
    graph, loss = _capture(lambda: step(cuda, optimizer, x))
    for each in data[1:]:
        with torch.cuda.stream(side):  # comes from another stream
            side.wait_stream(torch.cuda.default_stream())
            x.copy_(each, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        losses.append(loss.item())
    assert losses == expected
    torch.cuda.synchronize()
    assert DEVICE.violations() == []


def test_replay_in_another_thread_computes_the_same_bits():
    """A sum that is split over more threads has other last bits."""
    torch.manual_seed(2)
    x = torch.randn(1 << 20, device="cuda")
    graph, result = _capture(lambda: (x * 1.1).sum())
    found = []

    def waits():
        torch.set_num_threads(3)
        torch.cuda.synchronize()

    for _ in range(2):
        graph.replay()
        if found:
            thread = threading.Thread(target=waits)
            thread.start()
            thread.join()
        found.append(result.item())
    assert found[0] == found[1]


def test_a_missing_edge_before_a_replay_is_named():
    x = torch.ones(1000, device="cuda")
    graph, _ = _capture(lambda: x * 2)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.copy_(torch.zeros(1000).pin_memory(), non_blocking=True)
    graph.replay()
    violations = DEVICE.violations()
    torch.cuda.synchronize()
    DEVICE.clear_violations()
    assert len(violations) == 1
    assert "aten::mul" in violations[0] and "in a graph" in violations[0]


def test_freeing_under_a_replay_is_named():
    """The graph holds no memory alive, and the checker looks at each replay."""
    x = torch.ones(1 << 20, device="cuda")
    graph, result = _capture(lambda: x.add_(1))
    graph.replay()
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    del x, result
    torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()
        torch.cuda.synchronize()
    (violation,) = DEVICE.violations()
    DEVICE.cuda.cudasim_clear_errors()
    DEVICE.clear_violations()
    assert "aten::add_" in violation and "in a graph" in violation
