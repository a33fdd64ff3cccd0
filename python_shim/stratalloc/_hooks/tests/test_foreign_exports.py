# SPDX-License-Identifier: Apache-2.0
"""Memory that is exported to other libraries and processes stays until they
free it, while another thread evicts without pause."""

import ctypes

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5)

import torch  # noqa: E402

from python_shim.testing.foreign_kernels import (  # noqa: E402,F401
    MIB, SEEDS, TO_HOST, away, clean, original_data_ptr, parameter, runtime,
    staying)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.evicting import evicting  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402


@pytest.mark.parametrize("export", [
    lambda t: t.__dlpack__(),
    lambda t: t.__dlpack__(max_version=(1, 0)),
    lambda t: torch.utils.dlpack.to_dlpack(t),
    lambda t: torch.to_dlpack(t),
], ids=["dlpack", "versioned", "utils", "torch"])
def test_dlpack_keeps_until_it_is_freed(export):
    weight = parameter()
    right = weight.detach().cpu()
    away(weight)
    capsule = export(weight.detach())
    back = torch.from_dlpack(capsule)
    host = torch.empty(MIB // 4)
    with evicting():
        other = parameter(4 * MIB, seed=7)  # in handles of its own
        for seed in range(SEEDS // 4):
            simulate.driver().cudasim_set_seed(seed)
            assert runtime.cudaMemcpyAsync(
                original_data_ptr(host), original_data_ptr(back), MIB, TO_HOST,
                torch.cuda.current_stream().cuda_stream) == 0
            torch.cuda.synchronize()
            assert torch.equal(host, right)
            other.detach().add_(1)
    assert stratalloc.report()["pinned"] == [
        {"owner": "Module", "reason": "exported to other libraries",
         "bytes": MIB}]


def test_a_copy_for_dlpack_leaves_the_original_alone():
    weight = parameter()
    away(weight)
    torch.from_dlpack(weight.detach().__dlpack__(dl_device=(1, 0), copy=True))
    stratalloc.evict()
    assert _tiers.residency(weight)["device"] == 0


def test_what_another_process_is_sent_has_arrived():
    """The event that goes along is one of the sender's current stream."""
    size = 16 * MIB  # several copies, not all of which are over by chance
    host = torch.empty(size // 4)
    for seed in range(SEEDS // 4):
        simulate.driver().cudasim_set_seed(seed)
        weight = parameter(size, seed)
        right = weight.detach().cpu()
        away(weight)
        with torch.cuda.stream(torch.cuda.Stream()):
            sent = weight.untyped_storage()._share_cuda_()
            assert runtime.cudaMemcpyAsync(
                original_data_ptr(host), original_data_ptr(weight), size,
                TO_HOST,
                torch.cuda.current_stream().cuda_stream) == 0
        torch.cuda.synchronize()
        torch.UntypedStorage._release_ipc_counter_cuda(sent[4], sent[5])
        assert torch.equal(host, right)
        del weight
        torch.cuda.ipc_collect()


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI, up to what is used here."""

    _fields_ = [("version", ctypes.c_uint32 * 2), ("previous", ctypes.c_void_p),
                ("allocate", ctypes.c_void_p),
                ("managed_from_object", ctypes.c_void_p),
                ("object_from_managed", ctypes.c_void_p),
                ("tensor_from_object", ctypes.c_void_p),
                ("current_stream", ctypes.c_void_p)]


def exchange():
    take = ctypes.pythonapi.PyCapsule_GetPointer
    take.restype, take.argtypes = ctypes.c_void_p, (ctypes.py_object,
                                                    ctypes.c_char_p)
    return Exchange.from_address(take(torch.Tensor.__dlpack_c_exchange_api__,
                                      b"dlpack_exchange_api"))


@pytest.mark.parametrize("function", ["managed_from_object",
                                      "tensor_from_object"])
def test_the_exchange_api_keeps_too(function):
    weight = parameter()
    away(weight)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        getattr(exchange(), function))
    out = (ctypes.c_uint64 * 16)()
    assert call(weight.detach(), ctypes.addressof(out)) == 0
    assert _tiers.residency(weight)["device"] == MIB
    assert stratalloc.evict() == 0
    if function == "managed_from_object":
        managed = ctypes.cast(out[0], ctypes.POINTER(ctypes.c_uint64))
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed[2])(out[0])


def test_an_export_without_room_raises_and_exports_nothing():
    held = staying(48)
    weight = parameter(8 * MIB)
    away(weight)
    held += staying(12)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        exchange().tensor_from_object)
    out = (ctypes.c_uint64 * 16)()
    for export in (lambda: weight.detach().__dlpack__(),
                   lambda: weight.detach().__cuda_array_interface__,
                   lambda: call(weight.detach(), ctypes.addressof(out))):
        with pytest.raises(torch.OutOfMemoryError, match="an export needs"):
            export()
    assert stratalloc.report()["pinned"] == []
    del held


def test_array_interface_keeps_until_it_is_freed():
    weight = parameter()
    away(weight)
    address, read_only = weight.detach().__cuda_array_interface__["data"]
    assert address == original_data_ptr(weight) and not read_only
    assert stratalloc.evict() == 0
    assert not hasattr(torch.zeros(3), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="requires grad"):
        weight.__cuda_array_interface__  # pylint: disable=pointless-statement


def test_what_a_consumer_allocates_through_dlpack_stays():
    api = exchange()
    shape = (ctypes.c_int64 * 1)(MIB)
    # A float32 vector on device 0, as a DLTensor.
    prototype = (ctypes.c_uint64 * 7)(
        0, 2, 1 | 2 << 32 | 32 << 40 | 1 << 48, ctypes.addressof(shape), 0, 0)
    out = ctypes.c_void_p()
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p)(api.allocate)
    assert allocate(ctypes.addressof(prototype), ctypes.addressof(out), None,
                    None) == 0
    try:
        assert stratalloc.evict() == 0
        assert stratalloc.report()["pinned"][0]["bytes"] == 4 * MIB
    finally:
        managed = (ctypes.c_uint64 * 3).from_address(out.value)
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed[2])(out.value)
