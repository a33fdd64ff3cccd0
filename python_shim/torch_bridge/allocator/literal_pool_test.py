# SPDX-License-Identifier: Apache-2.0
"""The plugin in a MemPool while torch's native allocator stays."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import torch


def test_native_stays_and_the_pool_takes_unmanaged_segments():
    plugin = torch.cuda.memory.CUDAPluggableAllocator(
        BRIDGE.library._name, "stratalloc_malloc", "stratalloc_free"
    )
    outside = torch.ones(1000, device="cuda")
    used = DEVICE.used()
    pool = torch.cuda.MemPool(plugin.allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((1 << 20,), 2.0, device="cuda")
    assert BRIDGE.library.stratalloc_torch_is_current() == 0
    assert DEVICE.used() > used
    assert inside[:1000].add(outside).sum().item() == 3000
    (segment,) = pool.snapshot()
    assert segment["address"] == inside.data_ptr()
    assert BRIDGE.hints() == []  # the core was never asked for a block
    del inside, pool, segment
    assert DEVICE.used() == used
