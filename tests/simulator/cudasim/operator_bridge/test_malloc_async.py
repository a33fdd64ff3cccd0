# SPDX-License-Identifier: Apache-2.0
"""PyTorch's other allocator, PYTORCH_ALLOC_CONF=backend:cudaMallocAsync: every
tensor is a block of the device's memory pool."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(
    memory="128MiB",
    mode="async",
    seed=2,
    PYTORCH_ALLOC_CONF="backend:cudaMallocAsync",
)

# pylint: disable=wrong-import-position
import gc

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _clean():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0
    assert torch.cuda.memory_allocated() == 0
    assert DEVICE.used() == 0


def _model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(50, 16),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 50),
    )


def test_the_backend_is_the_one_asked_for():
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    before = torch.cuda.memory_reserved()
    x = torch.ones(1000, device="cuda")
    assert torch.cuda.memory_allocated() == 4096
    assert torch.cuda.memory_reserved() == max(before, 32 << 20)
    assert torch.equal(x.cpu(), torch.ones(1000))
    del x


def test_a_model_trains_as_on_the_cpu():
    cpu, cuda = _model(), _model().cuda()
    torch.manual_seed(1)
    batches = [torch.randint(0, 50, (32, 9)) for _ in range(4)]
    losses = []
    for model in (cpu, cuda):
        device = next(model.parameters()).device
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen = []
        for batch in batches:
            batch = batch.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch[:, :8]), batch[:, 8])
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
        del optimizer, batch, loss
    assert losses[0] == losses[1]
    for here, there in zip(cuda.parameters(), cpu.parameters()):
        assert torch.equal(here.detach().cpu(), there.detach())


def test_tensors_of_other_streams_are_recorded():
    side = torch.cuda.Stream()
    for _ in range(5):
        x = torch.arange(10_000.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        x.record_stream(side)
        del x
        z = torch.full((10_000,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert torch.equal(y.cpu(), torch.arange(10_000.0) * 2)
        y.record_stream(torch.cuda.current_stream())
        del y, z


def test_it_runs_out_of_memory():
    kept = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            kept.append(torch.empty(16 << 20, dtype=torch.uint8, device="cuda"))
    assert len(kept) == 8
    del kept
    assert torch.ones(3, device="cuda").sum().item() == 3
