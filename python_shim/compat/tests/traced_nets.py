# SPDX-License-Identifier: Apache-2.0
"""A network of several layers, and torch's counters while it runs.

Import it after the simulated device and gpu_optimizer.
"""

import contextlib
import weakref

import pytest
import torch
from torch import nn

import stratalloc


class Net(nn.Module):
    """Two blocks, one of them with layers inside, and a layer never called."""

    made = weakref.WeakSet()

    def __init__(self):
        super().__init__()
        self.made.add(self)
        self.first = nn.Linear(64, 64)
        self.block = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        x = self.block(self.first(x))
        with stratalloc.scope("tail"):
            return (x * 2).sum()


RAN = {"", "first", "block", "block.0", "block.1"}


@pytest.fixture(scope="module")
def net():
    assert stratalloc.is_enabled()  # importing the module did it
    model = Net().cuda()
    model(batch()).backward()
    return model


def batch(rows=16):
    return torch.ones(rows, 64, device="cuda")


def counters(device=0):
    told = torch.cuda.memory_stats(device)
    return {name: told[name] for name in (
        "allocation.all.allocated", "allocation.all.freed",
        "allocated_bytes.all.allocated", "allocated_bytes.all.freed",
        "allocated_bytes.all.current", "reserved_bytes.all.current")}


@contextlib.contextmanager
def counted(device=0):
    """What torch's counters say more at the end than at the beginning."""
    found, before = {}, counters(device)
    yield found
    for name, value in counters(device).items():
        found[name] = value - before[name]


def of(events, kind):
    return [event for event in events if event.event_type == kind]
