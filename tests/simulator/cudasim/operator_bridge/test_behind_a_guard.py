# SPDX-License-Identifier: Apache-2.0
"""Another boxed kernel in front of the bridge's, as an allocator's guard has."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import ctypes

import pytest
import torch

from tests.simulator.cudasim.operator_bridge import models

GUARD = ctypes.CDLL(simulated.find("libguard_stand_in.so"))
GUARDED = GUARD.guard_stand_in_install()


def test_training_equals_the_cpu_with_every_operator_guarded():
    assert GUARDED > 1200

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)

    torch.manual_seed(0)
    model = models.Transformer()
    expected, _ = models.train(model, "cpu", adamw)
    before = DEVICE.bridged()
    losses, _ = models.train(model, "cuda", adamw)
    assert losses == expected
    # Every bridged call came through the guard.
    bridged = DEVICE.bridged() - before
    assert bridged > 400
    assert GUARD.guard_stand_in_calls() >= bridged


def test_views_copies_results_and_errors_pass_through():
    a = torch.arange(6.0, device="cuda")
    assert a.add_(1) is a
    assert a.view(2, 3).t().contiguous().tolist() == [[1, 4], [2, 5], [3, 6]]
    out = torch.empty(0, device="cuda")
    assert torch.mul(a, 2, out=out) is out and out[5].item() == 12
    b = torch.zeros(6)
    b.copy_(a)
    assert b.tolist() == a.tolist()
    assert a.new_zeros(3).tolist() == [0, 0, 0]
    a.resize_(12)
    assert a.numel() == 12
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(a.view(3, 4), a.view(3, 4))
    with pytest.raises(NotImplementedError, match="only a CUDA kernel"):
        torch.ops.aten._triton_scaled_dot_attention(a, a, a)
    values, indices = a[:6].sort(descending=True)
    assert indices.tolist() == [5, 4, 3, 2, 1, 0] and values[0].item() == 6
