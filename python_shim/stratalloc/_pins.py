# SPDX-License-Identifier: Apache-2.0
"""pin() and unpin(): memory that stays on the device as long as the program says.

For what no hook sees: addresses in tables that kernels read, memory registered
with a network card, extensions that keep pointers of their own.
"""

import os
import sys
import threading

from stratalloc import _core
from stratalloc import _tiers

_lock = threading.Lock()
_pins = {}  # address of a storage -> [_Pin], keep()'s first, the newest last
_LEAST = 64
_look_at = _LEAST  # so many addresses, and dead pins are looked for


def _after_fork():
    global _lock
    _lock = threading.Lock()  # a thread that is gone may have held it
    _pins.clear()  # the parent's


os.register_at_fork(after_in_child=_after_fork)


class _Pin:
    __slots__ = ("pin", "bytes", "by", "device", "kept")

    def __init__(self, pin, size, by, device, kept=False):
        self.kept = kept  # keep()'s: end() takes it back, unpin() does not
        self.pin = pin
        self.bytes = size
        self.by = by
        self.device = device


def pin(obj, by=None):
    """Keeps the memory of `obj` on its devices until unpin(); returns its bytes.

    `obj` is a module (parameters, gradients and buffers), an optimizer (its
    state), a tensor, or any iterable or mapping of those, nested at will; each
    storage counts once. What was evicted is brought back first, everything
    together. `by` names the pin in report()["pins"]; by default it is the line
    of the caller.

    Pins are counted: unpin as often as pinned. They end with the memory: new
    gradients after zero_grad() are not pinned. Memory that never leaves
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
    with _lock:
        for (device, address, size), made in zip(ranges, pins):
            if made.serial:
                held = _pins[address] = _alive(address)
                held.append(_Pin(made, size, by, device))
        _forget_dead()
    return sum(size for _, _, size in ranges)


def keep(ranges, by):
    """Pins [(device, address, bytes)], listed under `by`: what end() takes."""
    kept = []
    pins = _core.pin([(address, size) for _, address, size in ranges])
    with _lock:
        for (device, address, size), made in zip(ranges, pins):
            if made.serial:
                one = _Pin(made, size, by, device, kept=True)
                _pins.setdefault(address, []).insert(0, one)
                kept.append((address, one))
        _forget_dead()
    return kept


def end(kept):
    """Takes back what keep() answered."""
    with _lock:
        for address, one in kept:
            held = _pins.get(address, [])
            if one in held:
                held.remove(one)
            if not held:
                _pins.pop(address, None)
    _core.unpin([one.pin for _, one in kept])


def unpin(obj):
    """Takes one pin() of each storage of `obj` back; returns the bytes.

    Storages that have no pin count nothing.
    """
    taken = []
    found = [address for ranges in _named(obj).values()
             for address, _ in ranges]
    with _lock:
        for address in found:
            held = _alive(address)
            if held and not held[-1].kept:
                taken.append(held.pop())
            if not held:
                _pins.pop(address, None)
    _core.unpin([one.pin for one in taken])
    return sum(one.bytes for one in taken)


def listed(device):
    """[{"by", "bytes", "storages"}] of one device, the largest first."""
    total = {}
    with _lock:
        for address in list(_pins):
            held = _alive(address)
            if not held:
                del _pins[address]
            for one in held:
                if one.device == device:
                    row = total.setdefault(one.by, [0, 0])
                    row[0] += one.bytes
                    row[1] += 1
    return [{"by": by, "bytes": size, "storages": storages}
            for by, (size, storages) in sorted(
                total.items(), key=lambda item: -item[1][0])]


def _alive(address):
    """The pins at an address whose memory has not been freed since."""
    held = _pins.get(address, [])
    held[:] = [one for one in held if _core.is_pinned(one.pin)]
    return held


def _forget_dead():
    """Pins end with their memory, and nobody says so: of many addresses all
    are looked at, each time that they are twice those that had a pin then."""
    global _look_at
    if len(_pins) < _look_at:
        return
    for address in list(_pins):
        if not _alive(address):
            del _pins[address]
    _look_at = max(_LEAST, 2 * len(_pins))


def _named(obj, all_of_it=False):
    _tiers.require_enabled("nothing moves and nothing needs a pin")
    return _tiers.named(obj, all_of_it)
