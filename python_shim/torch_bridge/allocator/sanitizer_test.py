# SPDX-License-Identifier: Apache-2.0
"""torch.cuda._sanitizer under our allocator: it hears of every block."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.cuda import _gpu_trace
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


def test_every_block_is_announced_once():
    """A freed block's history ends with it: its next user is innocent."""
    seen = []
    _gpu_trace.register_callback_for_memory_allocation(
        lambda ptr: seen.append(("+", ptr))
    )
    _gpu_trace.register_callback_for_memory_deallocation(
        lambda ptr: seen.append(("-", ptr))
    )
    for caching in (True, False):
        torch.cuda.caching_allocator_enable(caching)
        try:
            block = torch.empty(1000, device="cuda")
            address = block.data_ptr()
            del block
            raw = torch.cuda.caching_allocator_alloc(1000)
            torch.cuda.caching_allocator_delete(raw)
        finally:
            torch.cuda.caching_allocator_enable(True)
        assert seen == [("+", address), ("-", address), ("+", raw), ("-", raw)]
        seen.clear()


def test_the_same_without_the_race():
    x = torch.ones(1000, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    torch.cuda.current_stream().wait_stream(side)
    assert x.sum().item() == 2000
