# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of DistributedDataParallel keep their tensors in memory.

DistributedDataParallel broadcasts the buffers of its module before each forward
pass, by a C++ function that does not call __torch_function__ (spilled.py). So
as long as a manager spills host memory, `torch.distributed._broadcast_coalesced`
is a wrapper that brings its tensors back and keeps them until it returns, when
the broadcast is complete. Arguments, results and errors are torch's own.

Thread-safety: begin() and end() under the caller's lock. Fails: as reading the
spill file does.
"""

import functools

from torch import distributed

from stratalloc.compat.memory_management import spilled

_NAME = "_broadcast_coalesced"  # torch without distributed lacks it


def begin():
    """Installs the wrapper."""
    original = getattr(distributed, _NAME, None)
    if original is not None:
        setattr(distributed, _NAME, _present(original))


def end():
    """Puts torch's function back, unless other code replaced it since."""
    current = getattr(distributed, _NAME, None)
    if hasattr(current, "_stratalloc_original"):
        setattr(distributed, _NAME, current._stratalloc_original)


def _present(original):
    @functools.wraps(original)
    def broadcast(process_group, tensors, *args, **kwargs):
        with spilled.in_use(tensors):
            return original(process_group, tensors, *args, **kwargs)

    broadcast._stratalloc_original = original
    return broadcast
