# SPDX-License-Identifier: Apache-2.0
"""async mode: right numbers, and operators count as pending until an edge."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB", mode="async", seed=3)

# pylint: disable=wrong-import-position
import warnings

import torch

from tests.simulator.cudasim.operator_bridge import models


def test_training_equals_the_cpu_without_a_violation():
    torch.manual_seed(0)
    model = models.Transformer(depth=1)

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)

    expected, _ = models.train(model, "cpu", adamw)
    losses, _ = models.train(model, "cuda", adamw)
    assert losses == expected
    torch.cuda.synchronize()
    assert DEVICE.violations() == []


def test_a_queued_copy_is_done_before_its_reader():
    source = torch.arange(10000.0).pin_memory()
    target = torch.zeros(10000, device="cuda")
    target.copy_(source, non_blocking=True)
    assert (target * 2).sum().item() == 2 * source.sum().item()
    assert DEVICE.violations() == []


def test_side_streams_with_edges_are_clean():
    a = torch.ones(1000, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        b = a + 1
    torch.cuda.current_stream().wait_stream(stream)
    b.add_(1)
    assert b.sum().item() == 3000
    assert DEVICE.violations() == []


def test_an_operator_is_pending_until_an_edge_orders_it():
    """Without an edge, a copy or an operator on another stream is caught."""
    a = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for conflict in (
        lambda: a.copy_(torch.zeros(1000).pin_memory(), non_blocking=True),
        lambda: a * 2,
    ):
        with torch.cuda.stream(stream):
            a.add_(1)
        assert DEVICE.violations() == []
        conflict()
        (violation,) = DEVICE.violations()
        assert "aten::add_.Tensor" in violation
        assert "nothing orders the two" in violation
        torch.cuda.synchronize()
        DEVICE.clear_violations()


def test_a_sleeping_stream_is_busy_until_it_is_drained():
    stream = torch.cuda.Stream()
    event = torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(50e6))
        event.record()
    assert not event.query()
    assert not stream.query()
    event.synchronize()
    assert event.query()
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.violations() == []


def test_resized_results_are_not_overwritten_by_late_copies():
    out = torch.ones(4, device="cuda")
    values = torch.arange(1000.0, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.mul(values, 2, out=out)
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), torch.arange(1000.0) * 2)
    assert DEVICE.violations() == []
