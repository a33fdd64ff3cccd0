# SPDX-License-Identifier: Apache-2.0
"""Threads, out of memory inside operators, whole-layer and fused operators."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB")

# pylint: disable=wrong-import-position
import threading

import pytest
import torch
from torch import nn


def test_threads_on_their_own_streams():
    errors = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        cpu = torch.randn(20, 20, generator=generator)
        expected = cpu.clone()
        for _ in range(50):
            expected = torch.tanh(expected @ cpu) + expected.sum(0)
            expected = expected / expected.norm()
        with torch.cuda.stream(torch.cuda.Stream()):
            matrix = cpu.cuda()
            result = matrix.clone()
            for _ in range(50):
                result = torch.tanh(result @ matrix) + result.sum(0)
                result = result / result.norm()
            if not torch.equal(result.cpu(), expected):
                errors.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_out_of_memory_in_an_operator_and_in_backward():
    x = torch.ones(5 << 20, device="cuda", requires_grad=True)  # 20 MiB
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        kept = [x.detach() + k for k in range(10)]
    kept = None
    torch.cuda.empty_cache()

    # 20 MiB of 128 are x. y takes 20 and saves nothing but x; the three
    # gradients-to-be of backward find no room once 80 more are taken.
    y = (x.exp() * x.sin()).sum()
    torch.cuda.empty_cache()
    room = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            room.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        y.backward()
    del room
    torch.cuda.empty_cache()
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.mean().item() == 3
    del x, y, kept


def test_encoder_layer_as_one_operator():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = layer(x)
        result = layer.cuda()(x.cuda())
    assert torch.allclose(result.cpu(), expected, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.RMSprop(p, centered=True),
    ],
    ids=["adamw_fused", "amsgrad", "sgd", "sgd_fused", "adafactor", "rmsprop"],
)
def test_optimizers(make):
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Linear(6, 4).to(device)
        optimizer = make(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 6, device=device)).square().sum().backward()
            optimizer.step()
        results.append(model.weight.detach().cpu())
    assert torch.allclose(*results, atol=1e-6)
    assert not torch.equal(results[1], nn.Linear(6, 4).weight)


def test_unmapped_bytes_raise_instead_of_crashing():
    """A storage over arena addresses that nothing is mapped at."""
    tensor = torch.ones(4, device="cuda")
    # The end of the arena: reserved by nobody in this process.
    address = DEVICE.arena_base() + DEVICE.arena_size() - (4 << 20)
    stray = torch._C._construct_storage_from_data_pointer(
        address, tensor.device, 16
    )
    broken = torch.empty(0, device="cuda").set_(stray, 0, (4,), (1,))
    with pytest.raises(RuntimeError, match="illegal memory access.*aten::add"):
        _ = broken + 1
    assert (tensor + 1).sum().item() == 8
