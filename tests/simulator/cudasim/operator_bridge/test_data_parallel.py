# SPDX-License-Identifier: Apache-2.0
"""DataParallel and the collectives under it, on two simulated devices."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB", devices=2, mode="async", seed=3)

# pylint: disable=wrong-import-position
import pytest
import torch
from torch import nn
from torch.cuda import comm, nccl


@pytest.fixture(autouse=True)
def _in_order():
    yield
    for device in range(2):
        torch.cuda.synchronize(device)
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.violations() == []


def test_scatter_and_gather():
    x = torch.arange(24.0).view(6, 4).cuda()
    parts = comm.scatter(x, [0, 1])
    assert [p.device.index for p in parts] == [0, 1]
    assert torch.equal(comm.gather(parts, destination=1).cpu(), x.cpu())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64]
)
def test_broadcast_and_reduce(dtype):
    x = torch.arange(-5, 6).to(dtype).cuda()
    copies = comm.broadcast(x, [0, 1])
    assert [c.device.index for c in copies] == [0, 1]
    assert torch.equal(copies[1].cpu(), x.cpu())
    copies[1].mul_(3)
    total = comm.reduce_add([x, copies[1]], destination=1)
    assert total.device.index == 1
    assert torch.equal(total.cpu(), x.cpu() * 4)
    many = comm.broadcast_coalesced([x, x + 1], [0, 1])
    assert torch.equal(many[1][1].cpu(), x.cpu() + 1)
    sums = comm.reduce_add_coalesced(many, destination=0)
    assert torch.equal(sums[1].cpu(), (x.cpu() + 1) * 2)


def test_collectives_by_name():
    a = torch.tensor([1.0, 5.0, 3.0]).cuda(0)
    b = torch.tensor([4.0, 2.0, 6.0]).cuda(1)
    assert nccl.version() > (2, 0)
    nccl.all_reduce([a, b], op=2)  # max
    assert a.tolist() == b.tolist() == [4, 5, 6]
    gathered = [torch.empty(6, device=f"cuda:{i}") for i in range(2)]
    nccl.all_gather([a, b * 2], gathered)
    assert gathered[1].tolist() == [4, 5, 6, 8, 10, 12]
    shares = [torch.empty(3, device=f"cuda:{i}") for i in range(2)]
    nccl.reduce_scatter(gathered, shares)
    assert shares[0].tolist() == [8, 10, 12]
    assert shares[1].tolist() == [16, 20, 24]


def test_communicators_between_processes_are_refused(capfd):
    with pytest.raises(RuntimeError, match="invalid usage"):
        nccl.unique_id()
    assert "ncclGetUniqueId is not part of" in capfd.readouterr().err


def test_training():
    results = []
    for parallel in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        x = torch.randn(8, 6)
        if parallel:
            model, x = model.cuda(), x.cuda()
        wrapped = nn.DataParallel(model, [0, 1]) if parallel else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(x).square().mean().backward()
            optimizer.step()
        results.append([p.detach().cpu() for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.allclose(a, b, atol=1e-6)
