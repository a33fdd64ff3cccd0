# SPDX-License-Identifier: Apache-2.0
"""The fused attentions: what they choose, return, keep and compute."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import math

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _nothing_launched():
    yield
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0


def qkv(*sizes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*sizes, generator=generator).to(dtype) for _ in range(3)
    ]


def on_device(tensors):
    return [t.cuda().requires_grad_() for t in tensors]


def reference(q, k, v, bias=None, causal=False):
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if bias is not None:
        scores = scores + bias
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2]).tril() == 0
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)


def test_the_choice_is_the_cards():
    def choice(dtype, **options):
        q, k, v = on_device(qkv(1, 2, 8, 16, dtype=dtype))
        return SDPBackend(torch._fused_sdp_choice(q, k, v, **options))

    assert choice(torch.float32) == SDPBackend.EFFICIENT_ATTENTION
    assert choice(torch.float64) == SDPBackend.MATH
    half = choice(torch.float16)
    assert half in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        assert choice(torch.bfloat16) == SDPBackend.FLASH_ATTENTION
    with sdpa_kernel([SDPBackend.MATH]):
        assert choice(torch.float32) == SDPBackend.MATH


def test_flash_takes_no_float32():
    q, k, v = on_device(qkv(1, 2, 8, 16))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        with pytest.raises(RuntimeError, match="No available kernel"):
            functional.scaled_dot_product_attention(q, k, v)


def test_flash_returns_what_the_kernel_returns():
    q, k, v = [t.cuda() for t in qkv(2, 4, 6, 16, dtype=torch.float16)]
    # As (batch, length, heads, size) in memory, like a projection's output.
    q, k, v = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    result = aten._scaled_dot_product_flash_attention(q, k, v)
    output, logsumexp, cum_q, cum_k, max_q, max_k, rng, unused, mask = result
    assert output.shape == q.shape and output.is_cuda
    assert output.numel() == output.untyped_storage().nbytes() // 2
    assert (logsumexp.shape, logsumexp.dtype) == ((2, 4, 6), torch.float32)
    assert cum_q is None and cum_k is None
    assert (max_q, max_k) == (6, 6)
    assert (rng.shape, rng.dtype, rng.is_cuda) == ((2,), torch.uint64, True)
    assert (unused.shape, mask.shape) == ((), (0,))
    expected = reference(*[t.cpu().float() for t in (q, k, v)])
    assert torch.allclose(output.cpu().float(), expected[0], atol=2e-3)
    assert torch.allclose(logsumexp.cpu(), expected[1], atol=1e-3)


@pytest.mark.parametrize("rows", [5, 32, 33])
def test_efficient_pads_its_rows_and_keeps_none_without_gradient(rows):
    q, k, v = [t.cuda() for t in qkv(1, 2, rows, 8)]
    run = aten._scaled_dot_product_efficient_attention
    output, logsumexp, seed, offset = run(q, k, v, None, True)
    assert logsumexp.shape == (1, 2, -(-rows // 32) * 32)
    # Read by the host before it launches the backward.
    assert not seed.is_cuda and not offset.is_cuda
    expected = reference(q.cpu(), k.cpu(), v.cpu())
    assert torch.allclose(output.cpu(), expected[0], atol=1e-6)
    assert torch.allclose(logsumexp.cpu()[:, :, :rows], expected[1], atol=1e-6)
    assert run(q, k, v, None, False)[1].numel() == 0


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION],
)
def test_scores_are_not_kept(backend):
    """512 x 512 scores of 8 heads are 8 MiB in float32; the tensors 256 KiB."""
    dtype = (
        torch.float32
        if backend == SDPBackend.EFFICIENT_ATTENTION
        else torch.float16
    )
    q, k, v = on_device(qkv(1, 8, 512, 16, dtype=dtype))
    torch.cuda.synchronize()
    peaks = {}
    for which in (backend, SDPBackend.MATH):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with sdpa_kernel([which]):
            output = functional.scaled_dot_product_attention(q, k, v)
        held = torch.cuda.memory_allocated() - before
        output.sum().backward()
        peaks[which] = torch.cuda.max_memory_allocated() - before
        q.grad = k.grad = v.grad = None
        if which == backend:
            tensor = q.numel() * q.itemsize
            rows = 8 * 512 * 4
            assert tensor + rows <= held <= tensor + rows + 4096
        del output
    assert peaks[backend] < 3e6
    assert peaks[SDPBackend.MATH] > 8e6


def test_the_gradient_of_a_bias():
    q, k, v = qkv(2, 2, 6, 8)
    bias = torch.randn(2, 1, 6, 6)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [t.to(device).requires_grad_() for t in (q, k, v, bias)]
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            output = functional.scaled_dot_product_attention(
                *leaves[:3], attn_mask=leaves[3]
            )
        results.append(torch.autograd.grad(output.square().sum(), leaves))
    for a, b in zip(*results):
        assert torch.allclose(a, b.cpu(), atol=1e-5)


def test_dropout_is_repeatable_and_advances_like_the_kernels():
    for dtype, backend, increment in (
        (torch.float32, SDPBackend.EFFICIENT_ATTENTION, 2 * 4 * 8 * 8),
        (torch.float16, SDPBackend.FLASH_ATTENTION, 2 * 4 * 32),
    ):
        q, k, v = on_device(qkv(2, 4, 8, 16, dtype=dtype))
        outputs = []
        for _ in range(2):
            torch.cuda.manual_seed(9)
            generator = torch.cuda.default_generators[0]
            with sdpa_kernel([backend]):
                outputs.append(
                    functional.scaled_dot_product_attention(
                        q, k, v, dropout_p=0.5
                    )
                )
            assert generator.get_offset() == increment
        assert torch.equal(*outputs)
        # The backward draws no more and is the derivative of that mask.
        loss = outputs[0].float().square().sum()
        first = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
        assert generator.get_offset() == increment
        again = torch.autograd.grad(loss, (q, k, v))
        for a, b in zip(first, again):
            assert torch.equal(a, b)


def test_packed_sequences():
    """Three sequences in one tensor, as nested tensors and servers do it."""
    lengths = [4, 1, 7]
    starts = torch.tensor([0, 4, 5, 12], dtype=torch.int32)
    total = sum(lengths)
    q, k, v = qkv(total, 3, 8, dtype=torch.float16)
    expected = [
        reference(
            *[
                t[a:b].float().transpose(0, 1).unsqueeze(0)
                for t in (q, k, v)
            ],
            causal=True,
        )
        for a, b in zip(starts[:-1], starts[1:])
    ]
    whole = torch.cat([e[0][0].transpose(0, 1) for e in expected])
    cuda = on_device((q, k, v))
    output, logsumexp, *_ = aten._flash_attention_forward(
        *cuda, starts.cuda(), starts.cuda(), 7, 7, 0.0, True, False
    )
    assert torch.allclose(output.cpu().float(), whole, atol=2e-3)
    assert logsumexp.shape == (3, total)
    (output.float() ** 2).sum().backward()
    assert cuda[0].grad.shape == q.shape and cuda[0].grad.abs().sum() > 0

    output, logsumexp, *_ = aten._efficient_attention_forward(
        *[t.unsqueeze(0) for t in cuda],
        None, starts.cuda(), starts.cuda(), 7, 7, 0.0, 1, True,
    )  # fmt: skip
    assert torch.allclose(output[0].cpu().float(), whole, atol=2e-3)
    assert logsumexp.shape == (3, 3, 32)


def test_what_is_not_computed_is_refused_by_name():
    q = torch.zeros(1, 4, 2, 8, dtype=torch.float16, device="cuda")
    slopes = torch.ones(2, device="cuda")
    with pytest.raises(NotImplementedError, match="alibi_slopes.*attn_mask"):
        aten._flash_attention_forward(
            q, q, q, None, None, 4, 4, 0.0, False, False, alibi_slopes=slopes
        )
