# SPDX-License-Identifier: Apache-2.0
"""Too late, or not native's place: the installation changes nothing."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch


def test_refused_after_cuda_was_initialised():
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="before the first CUDA tensor"):
        BRIDGE.call("install")
    assert BRIDGE.library.stratalloc_torch_is_current() == 0
    assert (x + 1).sum().item() == 8


def test_guard_over_the_native_allocator_is_a_pass_through():
    BRIDGE.call("install_guard")
    x = torch.ones(4, device="cuda")
    assert (x + 1).sum().item() == 8
    assert BRIDGE.enters() == 0
