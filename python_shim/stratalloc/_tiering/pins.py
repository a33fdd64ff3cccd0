# SPDX-License-Identifier: Apache-2.0
"""pin() and unpin(): memory that stays on the device as long as the program says.

For what no hook sees: addresses in tables that kernels read, memory registered
with a network card, extensions that keep pointers of their own.
"""

from __future__ import annotations

import os
import sys

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._tiering import pin_table as _pin_table
from stratalloc._tiering import tiers as _tiers


def pin(obj: object, by: str | None = None) -> int:
    """Keeps the memory of `obj` on its devices until unpin(); returns its bytes.

    `obj` is a module (parameters, gradients and buffers), an optimizer (its
    state), a tensor, or any iterable or mapping of those, nested at will; each
    storage counts once. What was evicted is brought back first, everything
    together. While another thread trains a module, name its tensors: gradients
    are read from `.grad`. `by` names the pin in report()["pins"]; by default it
    is the line of the caller.

    Pins are counted: unpin as often as pinned. They end with the memory: new
    gradients after optimizer.zero_grad() are not pinned. Memory that never leaves
    (activations, with tiering off everything) needs none and gets none.

    In the child of a fork it raises RuntimeError, as evict() and restore() do:
    CUDA memory cannot be used there, and the pins are the parent's.

    Raises torch.OutOfMemoryError, with nothing pinned, when it does not fit
    the device together with what stays there; TypeError for an object that
    holds no tensors, and for tensors that have no memory (meta, fake, not
    initialised): what they will have would not be pinned. Numbers, strings and
    None among others count nothing.
    """
    ranges = [(device, address, size)
              for device, found in _named(obj, all_of_it=True).items()
              for address, size in found]
    if not ranges or not _core.initialized():
        return 0
    if by is None:
        frame = sys._getframe(1)
        by = (f"{os.path.basename(frame.f_code.co_filename)}:"
              f"{frame.f_lineno}")
    pins = _core.pin([(address, size) for _, address, size in ranges])
    with _pin_table.lock:
        for (device, address, size), made in zip(ranges, pins):
            if made.serial:
                held = _pin_table.pins[address] = _pin_table.alive(address)
                held.append(_pin_table.Pin(made, size, by, device))
        _pin_table.forget_dead()
    return sum(size for _, _, size in ranges)


def unpin(obj: object) -> int:
    """Takes one pin() of each storage of `obj` back; returns the bytes.

    Storages that have no pin count nothing. As for pin(), name the tensors of a
    module that another thread trains.
    """
    taken = []
    found = [address for ranges in _named(obj).values()
             for address, _ in ranges]
    with _pin_table.lock:
        for address in found:
            held = _pin_table.alive(address)
            if held and not held[-1].kept:
                taken.append(held.pop())
            if not held:
                _pin_table.pins.pop(address, None)
    _core.unpin([one.pin for one in taken])
    return sum(one.bytes for one in taken)


def _named(obj, all_of_it=False):
    _state.require()
    return _tiers.named(obj, all_of_it)
