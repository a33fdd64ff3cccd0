# SPDX-License-Identifier: Apache-2.0
"""A list operator whose results fit by bytes, but not into the pieces left.

Ten tensors of a Hessian-vector product on 18 MiB: each of the large ones lies
in a handle of its own, and what is free beside them is too small for a result.
"""

from stratalloc import simulate

simulate.load("18MiB", mode="async", seed=3)

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

torch.set_num_threads(1)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(5)
                           for layer in (nn.Linear(515, 515), nn.Tanh())))


def _power_iteration(device, steps=3):
    model = _model().to(device)
    x = torch.ones(4, 515, device=device)
    parameters = list(model.parameters())
    vectors = [torch.ones_like(p) for p in parameters]
    for _ in range(steps):
        gradients = torch.autograd.grad(model(x).pow(2).mean(), parameters,
                                        create_graph=True)
        product = sum((g * v).sum() for g, v in zip(gradients, vectors))
        vectors = list(torch.autograd.grad(product, parameters))
        norm = torch.stack(torch._foreach_norm(vectors)).norm()
        vectors = torch._foreach_div(vectors, norm)
    return [v.cpu() for v in vectors]


def test_it_runs_in_slices_then():
    expected = _power_iteration("cpu")
    found = _power_iteration("cuda")
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert simulate.violations() == []


def test_what_writes_runs_once_only():
    # One element alone is more than the device: nothing of the list is touched.
    xs = [torch.ones(1 << 20, device="cuda") for _ in range(2)]
    with stratalloc.scope("kept", category="activation"):
        kept = torch.empty(11 << 20, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch._foreach_add_(xs, torch._foreach_exp(xs))
    del kept
    assert all(torch.equal(x.cpu(), torch.ones(1 << 20)) for x in xs)
