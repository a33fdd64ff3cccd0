# SPDX-License-Identifier: Apache-2.0
"""How full devices are: total bytes, used bytes, percent.

    usage = Usage(owner)
    usage.of(device)     # (total, used, percent) or (None, None, 0.0)

The first question reads; from then on one thread per device, shared by all
owners in the process, reads every 200 ms, and questions get its last answer.
The thread ends when the last owner that asked is gone.

CPU: what the machine, or its container, has and has available. A CUDA device
over our allocator: its limit and what is reserved of it; over PyTorch's: the
card's memory and what PyTorch has reserved. On a card, if nvidia-ml-py is
installed, used is what everybody has of it, as NVML says. Nothing here
initialises CUDA or makes a context; before CUDA is initialised and in a forked
child nobody knows. Other devices: nobody knows.
"""

import contextlib
import os
import threading
import weakref

import torch

from stratalloc.compat import _devices
from stratalloc.compat._package import core as _core, simulate

UNKNOWN = (None, None, 0.0)
_SECONDS = 0.2
_JOIN_SECONDS = 2  # a read of NVML that is under way


class Usage:

    def __init__(self, owner):
        self._asked = {}
        weakref.finalize(owner, _let_go, self._asked)

    def of(self, device):
        if device.type not in ("cpu", "cuda"):
            return UNKNOWN
        key = device.type, device.index or 0
        if is_child():
            return read(key)
        poller = self._asked.get(key)
        return (poller or _hold(self._asked, key)).last


class _Poller(threading.Thread):

    def __init__(self, key):
        super().__init__(name=f"memlord {key[0]}:{key[1]}", daemon=True)
        self.key, self.holders = key, 0
        self.last = read(key)
        self._over = threading.Event()

    def run(self):
        while not self._over.wait(_SECONDS):
            self.last = read(self.key)

    def end(self):
        self._over.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_JOIN_SECONDS)


_lock = threading.RLock()  # an owner may die under it
_pollers = {}


def _hold(asked, key):
    with _lock:
        poller = _pollers.get(key)
        if poller is None:
            poller = _pollers[key] = _Poller(key)
            poller.start()
        if key not in asked:
            asked[key] = poller
            poller.holders += 1
        return poller


def _let_go(asked):
    over = []
    with _lock:
        for key, poller in asked.items():
            poller.holders -= 1
            if not poller.holders and _pollers.get(key) is poller:
                over.append(_pollers.pop(key))
        asked.clear()
    for poller in over:
        poller.end()


_children = []  # the process, if it is a child


def is_child():
    """Was this process forked from one that was here?"""
    return _children == [os.getpid()]


def _in_child():
    global _lock
    _lock = threading.RLock()
    _pollers.clear()
    _children[:] = [os.getpid()]


os.register_at_fork(after_in_child=_in_child)


def read(key):
    kind, index = key
    try:
        total, used = _cpu() if kind == "cpu" else _cuda(index)
    except (RuntimeError, ValueError, OSError):
        return UNKNOWN
    return (total, used, 100 * used / total) if total else UNKNOWN


def _cpu():
    total, available = _core.host_memory()
    return (total, total - available) if total and available else (None, 0)


def _cuda(index):
    found = _devices.memory(index)
    if found is None:
        return None, 0
    used = found.reserved
    if not simulate.loaded():
        used = max(used, _by_everybody(index) or 0)
    return found.total, used


def _by_everybody(index):
    """Bytes of a card that are used, as its driver says; None: it does not."""
    try:
        import pynvml
    except ImportError:
        return None
    uuid = torch.cuda.get_device_properties(index).uuid
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            return pynvml.nvmlDeviceGetMemoryInfo(handle).used
        finally:
            pynvml.nvmlShutdown()
    return None
