# SPDX-License-Identifier: Apache-2.0
"""Foreign kernels and the memory they use, for tests of uses that no operator
shows.

A foreign kernel here is a copy between devices' addresses by the CUDA runtime:
it reads what it is given, whoever guards it, and runs when its stream does.
Import it after the simulated device; `clean` is a fixture that runs by itself.
"""

import ctypes

import pytest
import torch
from torch import nn

from python_shim.testing.let_go import let_go
import stratalloc
from stratalloc._tiering import tiers as _tiers

KIB, MIB = 1 << 10, 1 << 20
SEEDS = 100
DEVICE_TO_DEVICE, TO_HOST = 3, 2
runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaMemcpyAsync.argtypes = (ctypes.c_void_p, ctypes.c_void_p,
                                    ctypes.c_size_t, ctypes.c_int,
                                    ctypes.c_void_p)
original_data_ptr = torch._C.TensorBase.data_ptr


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go()
    stratalloc.evict()
    # Whatever was handed out or exported ended with its memory.
    assert stratalloc.report()["pinned"] == []


def parameter(size=MIB, seed=0):
    """A parameter of so many bytes, which may leave."""
    module = nn.Module()
    values = torch.arange(size // 4, dtype=torch.float32) * (seed + 1)
    module.weight = nn.Parameter(values.to("cuda"))
    return module.weight


def staying(mib):
    """So much memory that never leaves."""
    with stratalloc.scope("activations", category="activation"):
        return [torch.empty(MIB, dtype=torch.uint8, device="cuda")
                for _ in range(mib)]


def away(*tensors):
    torch.cuda.synchronize()
    stratalloc.evict(tensors)
    assert _tiers.residency(tensors)["device"] == 0


def foreign_copy(to, source, size):
    """A kernel of somebody else's on the current stream."""
    code = runtime.cudaMemcpyAsync(to, source, size, DEVICE_TO_DEVICE,
                                   torch.cuda.current_stream().cuda_stream)
    assert code == 0, code
