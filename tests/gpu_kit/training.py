# SPDX-License-Identifier: Apache-2.0
"""Trains the model for some steps in this process and says what that took."""

import torch
from torch import nn

from tests.gpu_kit import model as models
from tests.gpu_kit import on_device


def exact():
    """The same operations give the same bits, run after run; cuBLAS wants
    CUBLAS_WORKSPACE_CONFIG for that."""
    torch.use_deterministic_algorithms(True)
    # Would write all memory that is made, which no program does otherwise.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False


def train(device, shape, steps, warm):
    """AdamW on a fixed target; seconds, bytes and results as a dict."""
    model = models.Model(shape)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    addresses = [on_device.address(parameter) for parameter in parameters]
    losses, seconds, moves = [], [], []
    target = models.batch(shape, 1000)
    for step in range(warm + steps):
        states = models.batch(shape, step)
        before = _moved()
        with device.seconds(seconds):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(model(states), target)
            loss.backward()
            optimizer.step()
        after = _moved()
        moves.append({way: after[way] - before[way] for way in after})
        losses.append(loss.item())
        del loss, states
    return {
        "losses": losses, "digest": models.digest(parameters),
        "seconds": seconds, "moved": moves[warm:],
        "step": on_device.median(seconds[warm:]),
        "addresses_kept": addresses == [
            on_device.address(parameter) for parameter in parameters],
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "complaints": device.complaints(),
    }


def _moved():
    import stratalloc

    if not stratalloc.is_enabled():
        return {"out": 0, "in": 0}
    return on_device.moved()
