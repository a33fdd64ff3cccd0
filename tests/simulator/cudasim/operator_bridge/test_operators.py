# SPDX-License-Identifier: Apache-2.0
"""A wide sample of operators: each equals its CPU result exactly."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.nn import functional as F

X = torch.linspace(-3, 3, 24).view(4, 6)
I = torch.tensor([[2, 0, 1, 3, 1, 0]])

# name -> function of (matrix, index tensor); results may be tuples and lists.
CASES = {
    "arithmetic": lambda x, i: (x + 1) * x / (x.abs() + 2) - x**2,
    "compare": lambda x, i: ((x > 0) & (x <= 1)) | (x == x.max()),
    "where": lambda x, i: torch.where(x > 0, x, 0.0),
    "clamp": lambda x, i: x.clamp(-1, 1),
    "masked_fill": lambda x, i: x.masked_fill(x < 0, -7),
    "masked_select": lambda x, i: x.masked_select(x > 0),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, x),
    "index": lambda x, i: x[i[0, :3]],
    "index_bool": lambda x, i: x[x > 0],
    "index_two": lambda x, i: x[i[0, :4], i[0, 2:]],
    "index_put": lambda x, i: x.index_put((i[0],), x[0], accumulate=True),
    "index_select": lambda x, i: x.index_select(0, i[0]),
    "index_add": lambda x, i: x.index_add(1, i[0], x[:, i[0]]),
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 9.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x[:1]),
    "take": lambda x, i: x.take(i),
    "sort": lambda x, i: x.flip(1).sort(dim=1),
    "argsort": lambda x, i: (x * x).argsort(dim=1, stable=True),
    "topk": lambda x, i: x.topk(3, dim=1),
    "kthvalue": lambda x, i: x.kthvalue(2),
    "median": lambda x, i: x.median(dim=1),
    "mode": lambda x, i: x.round().mode(),
    "unique": lambda x, i: i.unique(return_inverse=True, return_counts=True),
    "nonzero": lambda x, i: (x > 1).nonzero(),
    "cat": lambda x, i: torch.cat([x, x, x], 1),
    "stack": lambda x, i: torch.stack([x, -x], 2),
    "split": lambda x, i: x.split([1, 5], 1),
    "chunk": lambda x, i: x.chunk(3, 1),
    "unbind": lambda x, i: x.unbind(0),
    "tril": lambda x, i: (x.tril(), x.triu(1)),
    "tril_indices": lambda x, i: torch.tril_indices(3, 4, device=x.device),
    "flip_roll": lambda x, i: x.flip(0).roll(2, 1),
    "repeat": lambda x, i: x.repeat(2, 1).repeat_interleave(2, 0),
    "meshgrid": lambda x, i: torch.meshgrid(x[0], x[1], indexing="ij"),
    "sums": lambda x, i: (x.sum(), x.sum(0), x.mean(1), x.prod(1)),
    "norms": lambda x, i: (x.norm(), x.std(0), x.var(1), x.logsumexp(1)),
    "extremes": lambda x, i: (x.max(0), x.argmin(1), x.amax(), x.aminmax()),
    "any_all": lambda x, i: ((x > 0).any(1), (x > -9).all()),
    "cumulative": lambda x, i: (x.cumsum(1), x.cumprod(0), x.cummax(1)),
    "bincount": lambda x, i: torch.bincount(i[0]),
    "histc": lambda x, i: x.histc(5, -3, 3),
    "searchsorted": lambda x, i: torch.searchsorted(x[0], x[0] + 0.1),
    "bucketize": lambda x, i: torch.bucketize(x, x[:, 0].contiguous()),
    "matmul": lambda x, i: (x @ x.t(), torch.mv(x, x[0]), torch.dot(x[0], x[1])),
    "bmm": lambda x, i: torch.bmm(x.view(2, 2, 6), x.view(2, 6, 2)),
    "einsum": lambda x, i: torch.einsum("ij,kj->ik", x, x),
    "addmm": lambda x, i: torch.addmm(x[:, :4], x, x.t(), beta=0.5),
    "outer": lambda x, i: torch.outer(x[0], x[1]),
    "linalg": lambda x, i: torch.linalg.inv(x[:, :4] + 5 * torch.eye(4, device=x.device)),
    "svd": lambda x, i: torch.linalg.svdvals(x),
    "fft": lambda x, i: torch.fft.rfft(x).abs(),
    "linear": lambda x, i: F.linear(x, x, x[:, 0]),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i.view(2, 3), x),
    "one_hot": lambda x, i: F.one_hot(i, 4),
    "softmax": lambda x, i: (x.softmax(1), x.log_softmax(0)),
    "activations": lambda x, i: [
        f(x) for f in (F.gelu, F.silu, F.relu, F.elu, F.mish, F.softplus,
                       F.leaky_relu, F.hardswish, torch.tanh, torch.sigmoid)
    ],
    "layer_norm": lambda x, i: F.layer_norm(x, (6,), x[0], x[1]),
    "rms_norm": lambda x, i: F.rms_norm(x, (6,), x[0]),
    "group_norm": lambda x, i: F.group_norm(x.view(2, 4, 3), 2),
    "pad": lambda x, i: (F.pad(x, (1, 2)), F.pad(x[None], (2, 2), mode="reflect")),
    "pool": lambda x, i: (F.max_pool1d(x, 2), F.avg_pool1d(x, 3)),
    "interpolate": lambda x, i: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "losses": lambda x, i: (
        F.mse_loss(x, x * 2),
        F.cross_entropy(x, i[0, :4]),
        F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
        F.smooth_l1_loss(x, -x),
    ),
    "factories": lambda x, i: (
        torch.arange(1, 9, 2, device=x.device),
        torch.linspace(0, 1, 5, device=x.device),
        torch.full((2, 3), 7, device=x.device),
        torch.eye(3, device=x.device),
        torch.zeros_like(x),
        torch.ones(3, device=x.device),
        torch.tensor([1.0, 2.0], device=x.device),
    ),
    "types": lambda x, i: (x.half(), x.bfloat16(), x.long(), x.bool(), x.double()),
    "bits": lambda x, i: (i << 2, i ^ 3, i // 2, i % 2),
    "complex": lambda x, i: torch.view_as_real(torch.complex(x, x).conj() * 2),
    "lists": lambda x, i: torch._foreach_add([x] * 40, [x * k for k in range(40)]),
    "list_norm": lambda x, i: torch._foreach_norm([x, x[0], x[1]]),
    "scan": lambda x, i: x.diff(dim=1),
    "cdist": lambda x, i: torch.cdist(x, x),
    "cosine": lambda x, i: F.cosine_similarity(x, x.flip(0)),
    "lerp": lambda x, i: torch.lerp(x, -x, 0.3),
    "addcmul": lambda x, i: (x.addcmul(x, x, value=2), x.addcdiv(x, x + 9)),
    "as_strided": lambda x, i: x.as_strided((2, 3), (1, 2)).contiguous(),
    "unfold": lambda x, i: x.unfold(1, 3, 2) + 0,
    "channels_last": lambda x, i: (x.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last) * 2),
    "scalar": lambda x, i: torch.tensor([x.sum().item(), x[1, 2].item(), i.max().item()]),
    "truth": lambda x, i: torch.tensor([bool((x > 2).any()), torch.equal(x, x + 0), torch.allclose(x, x + 1)]),
    "empty": lambda x, i: (x[:0] + 1, x[:0].sum(), torch.cat([x[:0], x])),
}  # fmt: skip


def _flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _flat(part)]


@pytest.mark.parametrize("name", CASES)
def test_equals_the_cpu(name):
    expected = _flat(CASES[name](X.clone(), I.clone()))
    results = _flat(CASES[name](X.cuda(), I.cuda()))
    assert len(expected) == len(results)
    for a, b in zip(expected, results):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert a.stride() == b.stride()
        assert torch.equal(a, b.cpu())
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0


DIFFERENTIABLE = [
    "arithmetic", "where", "clamp", "masked_fill", "index", "index_put",
    "gather", "scatter_add", "sort", "cat", "stack", "sums", "norms",
    "cumulative", "matmul", "bmm", "einsum", "linear", "embedding", "softmax",
    "activations", "layer_norm", "group_norm", "pad", "pool",
    "interpolate", "losses", "complex", "lerp", "unfold", "embedding_bag",
]  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_equals_the_cpu(name):
    gradients = []
    for device in ("cpu", "cuda"):
        leaf = X.clone().to(device).requires_grad_()
        total = 0
        for result in _flat(CASES[name](leaf, I.to(device))):
            if result.requires_grad:
                total = total + (result * result).sum()
        total.backward()
        gradients.append(leaf.grad.cpu())
    assert torch.equal(gradients[0], gradients[1])


def test_rms_norm_gradient():
    """CUDA has a fused backward; it is written out, so only close."""
    for weighted in (True, False):
        gradients = []
        for device in ("cpu", "cuda"):
            leaf = X.clone().view(2, 2, 6).to(device).requires_grad_()
            weight = torch.linspace(1, 2, 6, device=device, requires_grad=True)
            result = F.rms_norm(leaf, (6,), weight if weighted else None)
            (result * result.detach().exp()).sum().backward()
            gradients.append(leaf.grad.cpu())
            if weighted:
                gradients[-1] = (gradients[-1], weight.grad.cpu())
        assert torch.allclose(gradients[0][0], gradients[1][0], atol=1e-5)
        assert torch.allclose(gradients[0][-1], gradients[1][-1], atol=1e-4)
