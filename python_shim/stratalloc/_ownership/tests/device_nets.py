# SPDX-License-Identifier: Apache-2.0
"""Small networks on the simulated device whose bytes a test counts.

Import it after the device.
"""

import torch
from torch import nn

SIZE, BATCH = 64, 32
WEIGHT = SIZE * SIZE * 4


def net(name, layers=2):
    return type(name, (nn.Sequential,), {})(
        *[nn.Linear(SIZE, SIZE, bias=False)
          for _ in range(layers)]).to("cuda")


def data(requires_grad=False):
    return torch.randn(BATCH, SIZE, device="cuda", requires_grad=requires_grad)


def ones(count):
    """Bytes as torch counts them: a block is a multiple of 512."""
    return torch.ones(count * 128, device="cuda")


def module_with(name, tensor):
    """A module of its own class whose parameter is `tensor`."""
    model = type(name, (nn.Module,), {"forward": lambda self, x: x})()
    model.weight = nn.Parameter(tensor, requires_grad=False)
    return model


def block_bytes(*tensors):
    """What the storages of these take, each in a block of its own."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
    return sum(sizes.values())
