# SPDX-License-Identifier: Apache-2.0
"""The pins that Python took, by storage: for pin(), and for rules that keep
memory whose address somebody holds.

Pins end with their memory, and nobody says so: the dead are looked for.
"""

import os
import threading

from stratalloc._native import core as _core

lock = threading.Lock()  # of all below
pins = {}  # address of a storage -> [Pin], keep()'s first, the newest last
_LEAST = 64
_look_at = _LEAST  # so many addresses, and dead pins are looked for


def _after_fork():
    global lock
    lock = threading.Lock()  # a thread that is gone may have held it
    pins.clear()  # the parent's


os.register_at_fork(after_in_child=_after_fork)


class Pin:
    __slots__ = ("pin", "bytes", "by", "device", "kept")

    def __init__(self, pin, size, by, device, kept=False):
        self.kept = kept  # keep()'s: end() takes it back, unpin() does not
        self.pin = pin
        self.bytes = size
        self.by = by
        self.device = device


def keep(ranges, by):
    """Pins [(device, address, bytes)], listed under `by`: what end() takes."""
    kept = []
    taken = _core.pin([(address, size) for _, address, size in ranges])
    with lock:
        for (device, address, size), made in zip(ranges, taken):
            if made.serial:
                one = Pin(made, size, by, device, kept=True)
                pins.setdefault(address, []).insert(0, one)
                kept.append((address, one))
        forget_dead()
    return kept


def end(kept):
    """Takes back what keep() answered."""
    with lock:
        for address, one in kept:
            held = pins.get(address, [])
            if one in held:
                held.remove(one)
            if not held:
                pins.pop(address, None)
    _core.unpin([one.pin for _, one in kept])


def listed(device):
    """[{"by", "bytes", "storages"}] of one device, the largest first."""
    total = {}
    with lock:
        for address in list(pins):
            held = alive(address)
            if not held:
                del pins[address]
            for one in held:
                if one.device == device:
                    row = total.setdefault(one.by, [0, 0])
                    row[0] += one.bytes
                    row[1] += 1
    return [{"by": by, "bytes": size, "storages": storages}
            for by, (size, storages) in sorted(
                total.items(), key=lambda item: -item[1][0])]


def alive(address):
    """The pins at an address whose memory has not been freed since."""
    held = pins.get(address, [])
    held[:] = [one for one in held if _core.is_pinned(one.pin)]
    return held


def forget_dead():
    """Pins end with their memory, and nobody says so: of many addresses all
    are looked at, each time that they are twice those that had a pin then."""
    global _look_at
    if len(pins) < _look_at:
        return
    for address in list(pins):
        if not alive(address):
            del pins[address]
    _look_at = max(_LEAST, 2 * len(pins))
