# SPDX-License-Identifier: Apache-2.0
"""What tests of module and optimizer scopes share: two models on CPU tensors
and the wrapper installed over a scope stack written in Python.
"""

import gc

import pytest
import torch
from fake_stack import FakeStack
from torch import nn

from stratalloc._ownership import modules as _modules
from stratalloc._native import stack as _stack
from stratalloc._native.stack import (ACTIVATION, LIFETIME_PERSISTENT,
                                      LIFETIME_TRANSIENT, PARAMETER)

FORWARD = (ACTIVATION, LIFETIME_TRANSIENT)
CONSTRUCT = (PARAMETER, LIFETIME_PERSISTENT)


@pytest.fixture
def stack():
    gc.collect()  # names of earlier tests' models are free again
    fake = FakeStack()
    previous = _stack.use(fake)
    _modules.install()
    _modules._installed.owners.on_device = lambda tensor: True
    yield fake
    _modules.uninstall()
    _stack.use(previous)
    assert fake.depth() == 0, "frames left on the stack"
    assert fake.extra_pops == 0, "a pop without a push"


class Block(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("scale", torch.ones(size))
        self.seen = None

    def forward(self, x):
        if self.seen is not None:
            self.seen(self)
        return self.linear(x) * self.scale


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
