# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes under the product's allocator, which evicts: what
is shared stays."""

import ctypes
import struct

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    SHARING_ALLOCATORS="stratalloc,stratalloc",
    memory="64MiB",
    children=True,
    SHARING_METHODS="spawn,forkserver",
    SIMULATED_ALLOCATOR="stratalloc",
    STRATALLOC_CONF="host_budget:32MiB,disk_budget:0",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from stratalloc._native import core as _core
from tests.simulator.cudasim.operator_bridge.sharing_cases import *


def _share(storage):
    """What torch.multiprocessing sends; the counter is given back unused."""
    sent = storage._share_cuda_()
    torch.UntypedStorage._release_ipc_counter_cuda(sent[4], sent[5])
    return sent[1]


# Native's format: from torch 2.13 on the header says the kind of its handles.
VERSION = 3 if int(torch.__version__.split(".")[1]) >= 13 else 2
DESCRIPTORS = struct.pack("<ii", 1, 0) if VERSION == 3 else b""


def test_the_bytes_are_natives_and_stay_the_same():
    first = torch.ones(1000, device="cuda")
    handle = _share(first.untyped_storage())
    version, kind, pid, nonce, size, count = struct.unpack_from(
        "<bciIQQ", handle
    )
    assert (version, kind, pid) == (VERSION, b"e", os.getpid())
    # Native's padding; ours names the socket that gives the descriptors.
    with open("/proc/net/unix", encoding="ascii") as sockets:
        assert f"@stratalloc-shares-1-{pid}-{nonce:08x}\n" in sockets.read()
    assert size == 2 << 20 and count == 1
    assert handle[26:-4] == DESCRIPTORS and len(handle[-4:]) == 4
    assert _share(first.untyped_storage()) == handle
    del first
    torch.cuda.ipc_collect()


def test_what_is_received_is_mapped_once_the_driver_is_ready():
    # In this process, where the driver lets nobody open torch's event.
    first = torch.arange(1000.0, device="cuda")
    handle = _share(first.untyped_storage())
    core = _core.lib()
    address, token = ctypes.c_void_p(), ctypes.c_uint64()
    error = _core.Error()
    # 600: CUDA_ERROR_NOT_READY.
    assert (
        simulated.current().cuda.cudasim_fail(b"cuMemSetAccess", 1, 600, 0) == 0
    )
    opened = core.stratalloc_ipc_open(
        0,
        handle,
        ctypes.c_uint64(len(handle)),
        ctypes.byref(address),
        ctypes.byref(token),
        ctypes.byref(error),
    )
    assert opened == 0, error.message
    assert address.value
    assert core.stratalloc_ipc_close(token, ctypes.byref(error)) == 0
    del first
    torch.cuda.ipc_collect()
