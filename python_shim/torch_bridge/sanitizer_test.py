# SPDX-License-Identifier: Apache-2.0
"""torch.cuda._sanitizer under our allocator: it hears of every block."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.cuda import _sanitizer

BRIDGE.call("install")
_sanitizer.enable_cuda_sanitizer()


def test_a_planted_race_is_found(capsys):
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    with pytest.raises(_sanitizer.CUDASanitizerErrors):
        with torch.cuda.stream(side):
            x.mul_(2)
    assert "CSAN detected a possible data race" in capsys.readouterr().err


def test_reuse_of_memory_is_no_race():
    """A freed block's history ends with it, so its next user is innocent."""
    side = torch.cuda.Stream()
    first = torch.ones(1 << 19, device="cuda")
    first.mul_(2)
    address = first.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    del first
    for _ in range(50):
        with torch.cuda.stream(side):
            other = torch.ones(1 << 19, device="cuda")
            other.add_(1)
            if other.data_ptr() == address:
                break
            del other
    side.synchronize()
    assert other.sum().item() == 2 << 19


def test_the_same_without_the_race():
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    torch.cuda.current_stream().wait_stream(side)
    assert x.sum().item() == 2000
