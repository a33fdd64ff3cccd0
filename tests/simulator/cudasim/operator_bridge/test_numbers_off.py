# SPDX-License-Identifier: Apache-2.0
"""With numbers off: right shapes, strides and types, our memory, no bytes."""

import subprocess
import sys

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="64GiB", CUDASIM_NUMBERS="off")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.simulator.cudasim.operator_bridge import models


def same_layout(ours, cpu):
    assert ours.is_cuda
    assert ours.shape == cpu.shape
    assert ours.dtype == cpu.dtype
    assert ours.stride() == cpu.stride()


CASES = {
    "add": lambda x: x + 1.5,
    "matmul": lambda x: x @ x.mT,
    "sum": lambda x: x.sum(0),
    "sort": lambda x: x.sort(1)[1],
    "topk": lambda x: x.topk(3)[0],
    "softmax": lambda x: torch.softmax(x, -1),
    "gather": lambda x: x.gather(1, torch.zeros_like(x[:, :1]).long()),
    "transposed": lambda x: x.mT.relu(),
    "cat": lambda x: torch.cat([x, x], 1),
    "fft": lambda x: torch.fft.rfft(x),
    "scatter": lambda x: x.scatter_add(0, torch.zeros_like(x).long(), x),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "half": lambda x: x.half(),
    "compare": lambda x: x > 0,
    "convolution": lambda x: functional.conv1d(x[None], x[:, :, None]),
    "index": lambda x: x[torch.zeros(5, dtype=torch.long, device=x.device)],
    "any": lambda x: (x > 0).any(),
}


@pytest.mark.parametrize("name", CASES)
def test_results_look_like_those_of_the_cpu(name):
    x = torch.zeros(16, 16)
    same_layout(CASES[name](x.cuda()), CASES[name](x))


def test_every_number_reads_as_zero():
    x = torch.full((4, 4), 7.0, device="cuda")
    assert x.sum().item() == 0
    assert x.tolist() == [[0.0] * 4] * 4
    assert not (x > 0).any()
    # Sizes that depend on values are those of zeros.
    assert x.nonzero().shape == (0, 2)
    assert x[x == 0].shape == (0,)
    values, counts = x.unique(return_counts=True)
    assert values.shape == counts.shape == (1,)
    assert torch.equal(x, x + 1)


def test_in_place_and_out_arguments():
    x = torch.zeros(8, device="cuda")
    address = x.data_ptr()
    assert x.add_(1).data_ptr() == address
    out = torch.empty(0, device="cuda")
    torch.add(x, x, out=out)
    assert out.shape == (8,)
    assert out.untyped_storage().nbytes() == 32
    before = torch.cuda.memory_allocated()
    large = torch.empty(0, device="cuda")
    torch.cat([x.expand(1 << 18, 8)] * 2, out=large)
    assert large.shape == (1 << 19, 8)
    assert torch.cuda.memory_allocated() - before == 16 << 20


def test_views_stay_views():
    x = torch.zeros(4, 6, device="cuda")
    assert x.view(6, 4).data_ptr() == x.data_ptr()
    assert x.contiguous().data_ptr() == x.data_ptr()
    assert x.reshape(24).untyped_storage().data_ptr() == x.data_ptr()


def test_random_operators_advance_the_generator():
    generator = torch.cuda.default_generators[0]
    before = generator.get_offset()
    x = torch.rand(10, device="cuda")
    after_rand = generator.get_offset()
    functional.dropout(x, 0.5)
    assert before < after_rand < generator.get_offset()


def test_training_takes_the_memory_it_would():
    model = models.Transformer(width=64)
    losses, trained = models.train(
        model, "cuda", lambda p: torch.optim.AdamW(p, fused=True)
    )
    assert losses == [0.0] * 3
    assert all(p.is_cuda for p in trained.parameters())


def test_attention_is_the_cards():
    # The math form would need the 4 GiB of scores.
    q = torch.zeros(
        1, 32, 8192, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    same_layout(out.detach().contiguous(), q.detach().cpu())
    out.sum().backward()
    assert q.grad.shape == q.shape
    assert torch.cuda.max_memory_allocated() - before < 512 << 20


def test_batch_norm_and_convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).cuda()
    image = torch.zeros(2, 3, 33, 33, device="cuda")
    loss = model(image).square().mean()
    loss.backward()
    assert model[0].weight.grad.shape == (8, 3, 3, 3)


def test_lstm():
    model = nn.LSTM(16, 32, num_layers=2).cuda()
    out, (h, c) = model(torch.zeros(5, 2, 16, device="cuda"))
    assert (out.shape, h.shape, c.shape) == (
        (5, 2, 32), (2, 2, 32), (2, 2, 32))
    out.sum().backward()


def test_larger_than_this_machine():
    x = torch.zeros(40 << 30, dtype=torch.uint8, device="cuda")
    y = x[: 1 << 30].clone()
    assert y.shape == (1 << 30,)
    pinned = torch.empty(8 << 30, dtype=torch.uint8, pin_memory=True)
    pinned.copy_(x[: 8 << 30], non_blocking=True)
    torch.cuda.synchronize()
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(40 << 30, dtype=torch.uint8, device="cuda")


def test_what_depends_on_values_and_is_large_is_refused_by_name():
    x = torch.zeros(1 << 29, dtype=torch.bool, device="cuda")
    with pytest.raises(NotImplementedError, match="aten::nonzero"):
        x.nonzero()


def test_operands_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(3, device="cuda") + torch.zeros(3)


def test_everything_came_from_the_allocator():
    assert DEVICE.storages_outside() == 0
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.violations() == []


def _child(text, **settings):
    settings = "".join(f", {k}={v!r}" for k, v in settings.items())
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.simulator.cudasim.operator_bridge import simulated\n"
            f"simulated.load(memory='1GiB'{settings})\n{text}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_run_says_what_it_was():
    done = _child("", CUDASIM_NUMBERS="off")
    assert done.returncode == 0, done.stderr
    assert "no number of this run means anything" in done.stderr


def test_numbers_on_phantom_memory_are_refused():
    done = _child("", CUDASIM_PHANTOM="1", CUDASIM_NUMBERS="on")
    assert done.returncode != 0
    assert "device memory is phantom" in done.stderr
