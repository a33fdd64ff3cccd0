# SPDX-License-Identifier: Apache-2.0
"""The real all-MiniLM-L6-v2 gives the CPU's numbers, bit for bit."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="512MiB")

# pylint: disable=wrong-import-position
import copy

import torch

from tests.simulator.cudasim.operator_bridge import models


def test_embeddings_equal_the_cpu():
    model, tokenizer = models.minilm()
    expected = models.embed(model, tokenizer, models.SENTENCES)
    before = DEVICE.bridged()
    on_device = copy.deepcopy(model).to("cuda")
    result = models.embed(on_device, tokenizer, models.SENTENCES)

    assert expected.shape == (24, 384)
    assert torch.linalg.vector_norm(expected, dim=1).allclose(torch.ones(24))
    assert (result - expected).abs().max().item() == 0.0
    assert DEVICE.bridged() - before > 100
    assert DEVICE.bridged_ops() >= DEVICE.bridged()
    assert DEVICE.launches_without_twin() == 0
    # 91 MB of parameters and no more than a few batches of activations.
    assert 90e6 < torch.cuda.max_memory_allocated() < 200e6
    assert DEVICE.storages_outside() == 0


def test_storages_outside_a_reservation_are_counted():
    tensor = torch.ones(10, device="cuda")
    address = tensor.data_ptr()
    DEVICE.set_reservation(address, address + 4096)
    before = DEVICE.storages_outside()
    tensor.add_(1)
    assert DEVICE.storages_outside() == before
    DEVICE.set_reservation(1, 2)
    tensor.add_(1)
    assert DEVICE.storages_outside() == before + 1
