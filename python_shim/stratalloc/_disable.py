# SPDX-License-Identifier: Apache-2.0
"""disable(): everything comes back to the device, and tiering ends."""

from __future__ import annotations

from stratalloc import _enable
from stratalloc._native import core as _core
from stratalloc._native import state as _state


def disable() -> int:
    """Brings back everything that is evicted, then ends tiering.

    The allocator stays in place, with its accounting: blocks that it handed out
    cannot go to another one. From then on nothing is evicted, operators pass
    the guard untouched, and the copies in host memory and on disk are freed.
    What would have needed an eviction raises torch.OutOfMemoryError. Tiering
    cannot begin again in this process: operators that run without the guard
    leave no trace of what they use. The allocator of allocator() is not swapped
    in by this call.

    Returns: bytes that came back, in whole handles; 0 where tiering is off, as
      with STRATALLOC=0 in the environment.

    Raises:
      NotEnabledError: before enable().
      torch.OutOfMemoryError: not everything fits the device; the message says
        how much does not. Tiering goes on, and what came back stays.
      RuntimeError: a stream captures a CUDA graph, or bytes on disk were
        damaged; tiering goes on.
    """
    if _state.forbidden() and not _state.is_enabled():
        return 0  # as where enable() returned False and the program runs on
    _state.require()
    with _enable.lock:
        if _core.initialized():
            moved = _core.switch_tiering_off()
            _state.asked = _state.asked.replace(tiering=False)
            _state.active = _state.active.replace(tiering=False)
        else:
            moved = 0
            _enable.reconfigure(_state.asked.replace(tiering=False))
        _state.tiering_ended = True
        return moved
