# SPDX-License-Identifier: Apache-2.0
"""torch's own CUDAPluggableAllocator, called by hand, as the way in."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes

import torch


def _plugin():
    return torch.cuda.memory.CUDAPluggableAllocator(
        BRIDGE.library._name, "stratalloc_malloc", "stratalloc_free"
    )


def test_the_first_malloc_puts_the_whole_allocator_in_place():
    torch.cuda.memory.change_current_allocator(_plugin())
    torch.cuda.init()
    assert torch.cuda.get_allocator_backend() == "pluggable"
    first = torch.ones(1000, device="cuda")
    assert BRIDGE.library.stratalloc_torch_is_current() == 1
    assert torch.cuda.get_allocator_backend() == "native"
    assert torch.cuda.memory_allocated() == 4096
    assert torch.accelerator.memory_allocated() == 4096
    second = torch.ones(1000, device="cuda")
    assert (first + second).sum().item() == 2000
    # The first block is the plugin's to free, and comes back to us.
    del first, second
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 0


def test_a_second_plugin_serves_unmanaged_segments():
    """What a MemPool does with its allocator, through the same functions."""
    mine = ctypes.CDLL(BRIDGE.library._name)
    mine.stratalloc_malloc.restype = ctypes.c_void_p
    before = torch.cuda.memory_allocated(), DEVICE.used()
    ptr = mine.stratalloc_malloc(ctypes.c_size_t(3 << 20), 0, None)
    assert ptr and torch.cuda.memory_allocated() == before[0]
    assert DEVICE.used() >= before[1] + (3 << 20)
    mine.stratalloc_free(ctypes.c_void_p(ptr), ctypes.c_size_t(3 << 20), 0,
                         None)
    assert DEVICE.used() == before[1]
    # No memory is NULL: the pool has a ladder of its own.
    assert not mine.stratalloc_malloc(ctypes.c_size_t(1 << 40), 0, None)
