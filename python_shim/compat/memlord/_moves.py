# SPDX-License-Identifier: Apache-2.0
"""TorchMoveHooks: moves, and the synchronisations at which what was freed in
flight is credited.

Tensor.to charges the storage that it made, as every function that makes one.
With non_blocking the copy may still read the source when the program lets go of
it: an event behind the copy says when it is over. Module.to is heard as a
whole, too: some modules make storages of their own while they are moved (the
flat weights of an RNN), and what a module left behind is credited.
"""

import weakref

import torch

from stratalloc.compat.memlord import _handles, _objects

MOVES = ((torch.Tensor, "to"),)
MODULE_MOVES = ((torch.nn.Module, "to"),)
SYNCHRONISATIONS = ((torch.cuda, "synchronize"),
                    (torch.cuda.Stream, "synchronize"),
                    (torch.cuda.Event, "synchronize"))


class TorchMoveHooks(_handles.Handle):
    """What hook_into_torch() returns: moves and synchronisations are listened
    to. When a tracker's last one is disabled nobody waits for a synchronisation
    that nobody hears: what was freed in flight is credited."""


def flight(result, args, kwargs):
    """What tells that this move of args[0] is over; None: it is over."""
    # In every form of to() it is the first truth value by position.
    by_position = next((each for each in args if isinstance(each, bool)), False)
    if not kwargs.get("non_blocking", by_position):
        return None
    source, target = args[0].device, result.device
    on = source if source.type == "cuda" else target
    if source == target or on.type != "cuda":
        return None
    if torch.cuda.is_current_stream_capturing():
        return None  # a graph keeps what it reads
    return torch.cuda.current_stream(on).record_event()


class ModuleMove:
    """What was made for a module from `before` to made()."""

    def __init__(self, module):
        self._module = module
        # Weak: a move must not need memory for both.
        self._before = [weakref.ref(storage) for storage in storages_of(module)]

    def made(self):
        before = {id(ref()) for ref in self._before}
        return [storage for storage in storages_of(self._module)
                if id(storage) not in before]


def storages_of(module):
    return [storage for tensor in (*module.parameters(), *module.buffers())
            for storage in _objects.sighted(tensor)]
