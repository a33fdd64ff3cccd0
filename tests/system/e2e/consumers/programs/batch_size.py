# SPDX-License-Identifier: Apache-2.0
"""accelerate's find_executable_batch_size, which lives on out of memory."""

import torch
from accelerate.utils import find_executable_batch_size
from consumer import counts
from consumer import digest
from torch import nn


def _search(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 16)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tried = []

    @find_executable_batch_size(starting_batch_size=4096, **settings)
    def train(batch_size):
        tried.append([batch_size, torch.cuda.memory_allocated()])
        for seed in range(2):
            torch.manual_seed(seed)
            optimizer.zero_grad(set_to_none=True)
            batch = torch.randn(batch_size, 64, device="cuda")
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    loss = train()
    return {"tried": tried, "loss": loss,
            "parameters": [digest(p) for p in model.parameters()],
            "counts": counts()}


def by_tenths():
    """As accelerate does it by itself: nine tenths after each failure."""
    return _search()


def halving():
    """With a function of one's own, as its documentation shows."""
    size = 4096

    def half():
        nonlocal size
        size //= 2
        return size

    return _search(reduce_batch_size_fn=half)
