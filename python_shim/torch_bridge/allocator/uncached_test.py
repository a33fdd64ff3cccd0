# SPDX-License-Identifier: Apache-2.0
"""PYTORCH_NO_CUDA_MEMORY_CACHING=1, what compute-sanitizer is run with."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load(PYTORCH_NO_CUDA_MEMORY_CACHING="1")

# pylint: disable=wrong-import-position
import torch

BRIDGE.call("install")


def test_every_tensor_is_the_drivers():
    x = torch.ones(1000, device="cuda")
    used = DEVICE.used()
    y = torch.ones(3 << 20, dtype=torch.uint8, device="cuda")
    assert DEVICE.used() >= used + (3 << 20)
    assert torch.cuda.memory_allocated() == 0 and BRIDGE.hints() == []
    assert x.sum().item() == 1000
    del y
    assert DEVICE.used() == used
    raw = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(raw)
    assert DEVICE.used() == used
