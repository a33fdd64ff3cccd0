# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels are launches that no operator shows: compiled by Triton and
its assembler as on a GPU, launched with their pointers checked where the test
asks for it, and refused by name where it does not."""

import ctypes

from tests.simulator.cudasim.operator_bridge import compiling

DEVICE = compiling.load("256MiB", mode="async")

# pylint: disable=wrong-import-position
import pytest
import torch
import triton
from triton import language as tl

_HANDLE = 2 << 20


@triton.jit
def add_kernel(x, y, out, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    total = tl.load(x + at, inside) + tl.load(y + at, inside)
    tl.store(out + at, total, inside)


@triton.jit
def fill_kernel(address, block: tl.constexpr):
    """Its pointer comes as a number, of which Triton asks nothing."""
    out = address.to(tl.pointer_type(tl.float32))
    at = tl.arange(0, block)
    tl.store(out + at, at.to(tl.float32))


@pytest.fixture(autouse=True)
def _clean():
    DEVICE.check_raw_launches("all")
    yield
    DEVICE.cuda.cudasim_clear_errors()
    torch.cuda.synchronize()
    DEVICE.clear_violations()


class Mapped:
    """A handle that the test itself maps, and takes away."""

    def __init__(self):
        cuda = DEVICE.cuda
        address = ctypes.c_uint64()
        handle = ctypes.c_uint64()
        # CUmemAllocationProp and CUmemAccessDesc of device 0: pinned memory
        # located on a device; that device, read and write.
        prop = (ctypes.c_int * 8)(1, 0, 1, 0)
        access = (ctypes.c_int * 3)(1, 0, 3)
        size = ctypes.c_size_t(_HANDLE)
        zero = ctypes.c_uint64(0)
        done = [
            cuda.cuMemAddressReserve(
                ctypes.byref(address), size, size, zero, zero
            ),
            cuda.cuMemCreate(ctypes.byref(handle), size, prop, zero),
            cuda.cuMemMap(address, size, size_t(0), handle, zero),
            cuda.cuMemSetAccess(address, size, access, size_t(1)),
            cuda.cuMemRelease(handle),
        ]
        assert done == [0] * 5
        self.address = address.value

    def unmap(self):
        address = ctypes.c_uint64(self.address)
        assert DEVICE.cuda.cuMemUnmap(address, size_t(_HANDLE)) == 0


def size_t(value):
    return ctypes.c_size_t(value)


def test_a_launch_on_mapped_tensors_passes_and_is_counted():
    x, y, out = torch.ones(3, 1000, device="cuda")
    before = DEVICE.launches_checked()
    add_kernel[(4,)](x, y, out, 1000, block=256)
    torch.cuda.synchronize()
    assert DEVICE.launches_checked() == before + 1
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.violations() == []
    # It computed nothing, which is why it has to be asked for.
    assert out.tolist() == [1.0] * 1000


def test_freed_memory_is_an_illegal_address():
    tensor = torch.ones(8 << 20, device="cuda")
    address = tensor.data_ptr()
    fill_kernel[(1,)](address, block=64)
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    del tensor
    torch.cuda.empty_cache()
    # As on a device: the launch is accepted, the next call has the error.
    fill_kernel[(1,)](address, block=64)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        torch.cuda.synchronize()
    (violation,) = DEVICE.violations()
    assert violation.startswith("use-after-unmap: kernel fill_kernel on ")
    assert f"has as argument 0 the address of [{address:#x}, " in violation


def test_memory_without_a_mapping_is_refused_by_triton_itself():
    mapped = Mapped()

    class Tensor:
        dtype = torch.float32

        @staticmethod
        def data_ptr():
            return mapped.address

    y, out = torch.ones(2, 100, device="cuda")
    add_kernel[(1,)](Tensor, y, out, 100, block=128)
    torch.cuda.synchronize()
    mapped.unmap()
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        add_kernel[(1,)](Tensor, y, out, 100, block=128)


def test_unmapping_under_a_pending_launch():
    for synchronised in (True, False):
        mapped = Mapped()
        fill_kernel[(1,)](mapped.address + 4096, block=64)
        if synchronised:
            torch.cuda.current_stream().synchronize()
        mapped.unmap()
        if synchronised:
            assert DEVICE.violations() == []
    assert DEVICE.violations()[0].startswith("unmap-while-pending: cuMemUnmap")
    assert "kernel fill_kernel on the default stream" in DEVICE.violations()[0]


def test_a_block_reused_on_another_stream_without_record_stream():
    """The mistake that record_stream is for, made with a Triton kernel."""
    for recorded in (True, False):
        stream = torch.cuda.Stream()
        tensor = torch.ones(1 << 20, device="cuda")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            fill_kernel[(1,)](tensor.data_ptr(), block=64)
        if recorded:
            tensor.record_stream(stream)
        del tensor
        again = torch.zeros(1 << 20, device="cuda")
        assert bool(DEVICE.violations()) != recorded
        del again
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def test_without_the_opt_in_it_fails_closed_by_name(capfd):
    x, y, out = torch.ones(3, 1000, device="cuda")
    refused = DEVICE.launches_without_twin()
    for names in (None, "fill_kernel"):
        DEVICE.check_raw_launches(names)
        with pytest.raises(RuntimeError, match="operation not supported"):
            add_kernel[(4,)](x, y, out, 1000, block=256)
        DEVICE.cuda.cudasim_clear_errors()
    assert DEVICE.launches_without_twin() == refused + 2
    assert "kernel add_kernel was launched and has no" in capfd.readouterr().err


def test_a_twin_gives_the_kernel_its_numbers():
    twin = ctypes.CFUNCTYPE(
        None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p
    )

    @twin
    def fill(arguments, _grid, _block):
        address = ctypes.c_uint64.from_address(arguments[0]).value
        view = address + DEVICE.delta()
        (ctypes.c_float * 64).from_address(view)[:] = range(64)

    DEVICE.check_raw_launches(None)
    name = b"fill_kernel"
    DEVICE.cuda.cudasim_register_twin(name, fill)
    try:
        tensor = torch.zeros(64, device="cuda")
        fill_kernel[(1,)](tensor.data_ptr(), block=64)
        assert tensor.tolist() == list(range(64))
        gone = Mapped()
        gone.unmap()
        fill_kernel[(1,)](gone.address, block=64)
        (violation,) = DEVICE.violations()
        assert violation.startswith("use-after-unmap: kernel fill_kernel")
    finally:
        DEVICE.cuda.cudasim_register_twin(name, None)
