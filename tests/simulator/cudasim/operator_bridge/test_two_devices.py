# SPDX-License-Identifier: Apache-2.0
"""Unmodified PyTorch with three devices, of which 0 and 1 are peers."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(
    memory="64MiB,32MiB,64MiB",
    devices=3,
    CUDASIM_PEERS="0-1",
)

# pylint: disable=wrong-import-position
import gc

import pytest
import torch
from torch.cuda import comm


@pytest.fixture(autouse=True)
def _clean():
    yield
    gc.collect()
    torch.cuda.empty_cache()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0


def test_the_devices_and_their_links():
    assert torch.cuda.device_count() == 3
    links = {
        (a, b)
        for a in range(3)
        for b in range(3)
        if a != b and torch.cuda.can_device_access_peer(a, b)
    }
    assert links == {(0, 1), (1, 0)}
    sizes = [
        torch.cuda.get_device_properties(i).total_memory for i in range(3)
    ]
    assert sizes == [64 << 20, 32 << 20, 64 << 20]


@pytest.mark.parametrize("source", range(3))
@pytest.mark.parametrize("target", range(3))
def test_tensors_move_between_any_two(source, target):
    x = torch.arange(30_000.0).reshape(300, 100)
    y = x.to(f"cuda:{source}")
    assert torch.equal(y.to(f"cuda:{target}").cpu(), x)
    # Strided and converted on the way.
    assert torch.equal(y.t().to(f"cuda:{target}").cpu(), x.t())
    z = torch.empty(100, 300, dtype=torch.float64, device=f"cuda:{target}")
    z.copy_(y.t())
    assert torch.equal(z.cpu(), x.t().double())


def test_each_device_has_its_own_streams_and_current_one():
    with torch.cuda.device(1):
        x = torch.ones(3, device="cuda")
        assert x.get_device() == 1
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
    assert torch.cuda.current_device() == 0
    assert side.device == torch.device("cuda:1")
    assert torch.equal(y.cpu(), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3, device="cuda:0")


def test_capacity_and_statistics_are_per_device():
    torch.cuda.empty_cache()
    kept = [torch.empty(4 << 20, device="cuda:1", dtype=torch.uint8)]
    assert torch.cuda.memory_allocated(1) == 4 << 20
    assert torch.cuda.memory_allocated(0) == 0
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has a total"):
        kept.append(torch.empty(40 << 20, device="cuda:1", dtype=torch.uint8))
    kept.append(torch.empty(40 << 20, device="cuda:2", dtype=torch.uint8))
    assert torch.cuda.mem_get_info(2)[1] == 64 << 20
    kept[0].zero_()  # with tiering it was evicted for the 40 MiB
    # Of 4 MiB native makes a segment of 20 MiB.
    small = 20 if simulated.allocator() == "native" else 4
    assert [DEVICE.used(i) >> 20 for i in range(3)] == [0, small, 40]
    assert torch.cuda.memory_stats(1)["num_ooms"] == 1


def test_scatter_and_gather():
    x = torch.arange(24.0).reshape(6, 4)
    chunks = comm.scatter(x.cuda(), devices=[0, 1, 2])
    assert [c.get_device() for c in chunks] == [0, 1, 2]
    assert torch.equal(chunks[2].cpu(), x[4:])
    whole = comm.gather([c * 2 for c in chunks], destination=1)
    assert whole.get_device() == 1
    assert torch.equal(whole.cpu(), x * 2)
    assert torch.equal(comm.gather(chunks, destination="cpu"), x)


def test_copies_of_another_layout_or_type_between_devices():
    """Without peer access: converted where they are, then copied."""
    source = torch.arange(24.0, device="cuda:0").reshape(4, 6)
    right = source.cpu()
    for tensor in (
        source.t(),
        source[:, ::2],
        source[0, 0].expand(5, 5),
        source.to(torch.float16),
    ):
        target = torch.empty_like(tensor, device="cuda:1", dtype=torch.float32)
        target.copy_(tensor)
        assert torch.equal(target.cpu(), tensor.cpu().float())
        assert torch.equal(tensor.to("cuda:1").cpu(), tensor.cpu())
    strided = torch.zeros(6, 4, device="cuda:1").t()
    strided.copy_(source)
    assert torch.equal(strided.cpu(), right)
    for device in range(2):
        torch.cuda.synchronize(device)
    assert DEVICE.violations() == []
