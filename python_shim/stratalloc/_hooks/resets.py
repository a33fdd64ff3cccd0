# SPDX-License-Identifier: Apache-2.0
"""Resets of torch's counters, heard before they make a number forgotten.

Whoever measures a part of a program learns the most that a device held in it,
also where the program itself calls torch.cuda.reset_peak_memory_stats(), and
how many requests were refused, also where it calls
torch.cuda.reset_accumulated_memory_stats().
"""

import threading

from stratalloc._hooks.patching import Replaced, passing_on
from stratalloc._native import core as _core

# What torch.cuda's and torch.accelerator's functions call.
_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_ACCUMULATED = ("_cuda_resetAccumulatedMemoryStats",
                "_accelerator_resetAccumulatedStats")
# What one reset forgets no other may note as well. Who listens may be within
# another who does.
_forgetting = threading.RLock()


def before_each(torch, note, note_accumulated=None):
    """note() is called ahead of each reset of peaks, on the thread that resets,
    until put_back() of the Replaced that is returned; note_accumulated(device)
    ahead of each reset of that device's counters since the start."""
    def noting(original):
        def reset(*args, **kwargs):
            if _core.initialized():
                note()
            return original(*args, **kwargs)

        return passing_on(original, reset)

    def noting_accumulated(original):
        def reset(device):
            with _forgetting:
                if _core.initialized():
                    note_accumulated(device)
                return original(device)

        return passing_on(original, reset)

    hooks = Replaced()
    for name in _PEAKS:
        hooks.replace(torch._C, name, noting)
    if note_accumulated is not None:
        for name in _ACCUMULATED:
            hooks.replace(torch._C, name, noting_accumulated)
    return hooks
