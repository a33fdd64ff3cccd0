# SPDX-License-Identifier: Apache-2.0
"""Raw memory and caching switched off, as native answers them."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch

BRIDGE.call("install")


@pytest.fixture(name="uncached")
def _uncached():
    torch.cuda.init()
    torch.cuda.caching_allocator_enable(False)
    yield
    torch.cuda.caching_allocator_enable(True)


def test_raw_memory_comes_and_goes():
    before = torch.cuda.memory_allocated()
    ptr = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == before + 1024
    torch.cuda.caching_allocator_delete(ptr)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.caching_allocator_alloc(0) == 0
    for ptr in (4096, ptr):
        with pytest.raises(RuntimeError, match="invalid device pointer: 0x"):
            torch.cuda.caching_allocator_delete(ptr)


def test_raw_memory_on_a_stream_of_its_own():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        ptr = torch.cuda.caching_allocator_alloc(1000, stream=side)
    torch.cuda.caching_allocator_delete(ptr)


def test_without_caching_the_driver_is_asked(uncached):
    before, used = torch.cuda.memory_allocated(), DEVICE.used()
    x = torch.full((1000,), 3.0, device="cuda")
    raw = torch.cuda.caching_allocator_alloc(1 << 20)
    assert torch.cuda.memory_allocated() == before  # in no statistic
    assert DEVICE.used() >= used + (1 << 20)
    assert torch.empty(0, device="cuda").data_ptr() == 0
    assert x.clone().sum().item() == 3000
    x.record_stream(torch.cuda.Stream())
    torch.cuda.caching_allocator_delete(raw)
    del x
    assert DEVICE.used() == used  # at once, nothing is kept


def test_what_one_way_gave_goes_back_that_way():
    cached = torch.ones(1000, device="cuda")
    raw = torch.cuda.caching_allocator_alloc(1000)
    before, used = torch.cuda.memory_allocated(), DEVICE.used()
    torch.cuda.caching_allocator_enable(False)
    try:
        plain = torch.ones(1000, device="cuda")
        torch.cuda.caching_allocator_delete(raw)
    finally:
        torch.cuda.caching_allocator_enable(True)
    assert torch.cuda.memory_allocated() == before - 4096 + 3072
    assert (plain + cached).sum().item() == 2000
    del plain, cached
    torch.cuda.synchronize()
    assert DEVICE.used() < used


def test_no_memory_is_cudas_own_error(uncached):
    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")
    # Nothing is left behind for the next check.
    assert torch.ones(3, device="cuda").sum().item() == 3
