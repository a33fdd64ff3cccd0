# SPDX-License-Identifier: Apache-2.0
"""How full a GPU is, over whichever allocator is in place.

Asked without a call of CUDA where the allocator is ours; initialises nothing.
Any thread. RuntimeError: PyTorch's, where its allocator is asked for a device
that is not there.
"""

import typing

import torch

from stratalloc.compat._package import core as _core


class Memory(typing.NamedTuple):
    """Bytes of one GPU. `total`: what this process may have of it."""

    allocated: int
    reserved: int
    total: int


def memory(index):
    """Memory of a GPU, or None before CUDA is initialised, and in a child."""
    if not torch.cuda.is_initialized():
        return None
    if _core.loaded() and index < _core.device_count():
        told, _ = _core.metrics(index)
        return Memory(told.allocated, told.reserved,
                      told.limit or told.capacity)
    return Memory(torch.cuda.memory_allocated(index),
                  torch.cuda.memory_reserved(index),
                  torch.cuda.get_device_properties(index).total_memory)
