# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.memory.change_current_allocator as the way in."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes

import torch


def test_the_plugin_becomes_the_whole_allocator():
    wrapper = torch.cuda.memory.CUDAPluggableAllocator(
        BRIDGE.library._name,
        "stratalloc_malloc",
        "stratalloc_free",
    )
    init = ctypes.cast(BRIDGE.library.stratalloc_pluggable_init, ctypes.c_void_p)
    wrapper.allocator().set_init_fn(init.value)
    BRIDGE.call("install_guard")
    torch.cuda.memory.change_current_allocator(wrapper)
    assert torch.cuda.get_allocator_backend() == "pluggable"
    assert not torch.cuda.is_initialized()

    x = torch.ones(1000, device="cuda")
    assert BRIDGE.library.stratalloc_torch_is_current() == 1
    assert torch.cuda.get_allocator_backend() == "native"
    # None of these work with a plain plugin.
    assert torch.cuda.memory_allocated() >= 4000
    assert torch.accelerator.memory_allocated() >= 4000
    assert torch.cuda.memory_snapshot()
    assert BRIDGE.library.stratalloc_torch_native() != 0
    BRIDGE.evictable()
    x.add_(1)
    assert BRIDGE.accesses("aten::add_") == [(x.data_ptr(), 4000, True)]
    assert x.sum().item() == 2000
