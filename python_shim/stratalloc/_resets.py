# SPDX-License-Identifier: Apache-2.0
"""Resets of torch's peaks, heard before they make a peak forgotten.

Whoever measures a part of a program learns the most that a device held in it,
also where the program itself calls torch.cuda.reset_peak_memory_stats().
"""

from stratalloc import _core
from stratalloc._replaced import Replaced, passing_on

# What torch.cuda's and torch.accelerator's functions call.
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


def heard(torch, note):
    """note() is called ahead of each reset, on the thread that resets, until
    put_back() of the Replaced that is returned."""
    def noting(original):
        def reset(*args, **kwargs):
            if _core.initialized():
                note()
            return original(*args, **kwargs)

        return passing_on(original, reset)

    hooks = Replaced()
    for name in _RESETS:
        hooks.replace(torch._C, name, noting)
    return hooks
