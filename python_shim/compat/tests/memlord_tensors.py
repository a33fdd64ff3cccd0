# SPDX-License-Identifier: Apache-2.0
"""Tensors that MemLord counts, and what a wrong use could leave.

Import it after the simulated device; `nothing_is_left` is a fixture that runs
by itself.
"""

import gc
import os
import threading

import pytest
import torch
from torch import nn

MIB = 1 << 20
CPU = torch.device("cpu")
CUDA0, CUDA1 = torch.device("cuda", 0), torch.device("cuda", 1)
_PLACES = [(torch, "empty"), (torch, "add"), (torch.Tensor, "to"),
           (torch.Tensor, "__add__"), (torch.Tensor, "clone"),
           (torch.Tensor, "split"), (torch.nn.functional, "linear"),
           (nn.Module, "to"), (torch.cuda, "synchronize"),
           (torch.cuda.Stream, "synchronize"),
           (torch.cuda.Event, "synchronize"), (torch.fft, "rfft")]


def mib(count, device=CPU):
    """A tensor of so many MiB."""
    return torch.empty(count * MIB, dtype=torch.uint8, device=device)


def is_counted(mem, allocated, freed, device=None):
    return (mem.allocated(device)[0], mem.freed(device)[0]) == (
        allocated * MIB, freed * MIB)


def left():
    """What a wrong use could leave: threads, descriptors, and attributes."""
    return (sorted(each.name for each in threading.enumerate()),
            len(os.listdir("/proc/self/fd")),
            [(vars(owner).get(name), getattr(owner, name))
             for owner, name in _PLACES])


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.collect()
    before = left()
    yield
    gc.collect()
    assert left() == before
