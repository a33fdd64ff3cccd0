# SPDX-License-Identifier: Apache-2.0
"""A collection: what garbage holds is freed, and what is cached is given back.

Python's collector has no devices. Of the caches only the device's is given
back; over PyTorch's own allocator, which has one call for all GPUs, theirs
(memlord.md). Of the CPU the C library is asked to give its free pages back.

Must not be called from where a storage dies: it runs whatever finalizers there
are. Nothing is raised.
"""

import contextlib
import ctypes
import gc

import torch

from stratalloc.compat._package import core as _core, state as _state


def collect(device):
    gc.collect()
    # An allocator that is being torn down, or a captured graph: it keeps it.
    with contextlib.suppress(RuntimeError):
        if device.type == "cuda":
            if torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork():
                if _state.is_enabled():
                    _core.empty_cache(device.index)
                else:
                    torch.cuda.empty_cache()
        elif device.type == "cpu":
            _trim()
        else:
            getattr(getattr(torch, device.type, None), "empty_cache",
                    lambda: None)()


def _trim():
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
