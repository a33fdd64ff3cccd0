# SPDX-License-Identifier: Apache-2.0
"""Training a transformer with AdamW with its defaults (list operators) equals the CPU."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import torch

from tests.simulator.cudasim.operator_bridge import models


def _adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def test_losses_and_parameters_equal_the_cpu():
    torch.manual_seed(0)
    model = models.Transformer()
    expected, on_cpu = models.train(model, "cpu", _adamw)
    losses, on_device = models.train(model, "cuda", _adamw)

    assert losses == expected
    assert expected[2] < expected[0]  # it learned something
    for (name, cpu), cuda in zip(
        on_cpu.named_parameters(), on_device.parameters()
    ):
        assert cuda.is_cuda
        assert torch.equal(cuda.detach().cpu(), cpu.detach()), name
        assert torch.equal(cuda.grad.cpu(), cpu.grad), name
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
