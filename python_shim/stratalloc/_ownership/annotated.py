# SPDX-License-Identifier: Apache-2.0
"""Storages that the program gave an owner itself: annotate().

Who owns memory is found out again and again, at every report and step; what was
annotated is left as it is, as long as its storage lives. A storage is known by
its object, not by its address: a weak reference keeps the object's place from
being another's, and not its memory.

Of a sparse or quantized tensor Python has no storage: nobody is remembered.

Thread-safety: any thread; single dict operations.
"""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stratalloc._native import storages as _storages


class Annotated:
    """Weak: it keeps no memory alive."""

    def __init__(self):
        self._storages = {}  # address of the object -> StorageWeakRef

    def add(self, tensor):
        """The storages of this tensor keep the owner that they have now."""
        for key, known in list(self._storages.items()):
            if known.expired():
                self._storages.pop(key, None)
        for storage in _plain(tensor):
            known = StorageWeakRef(storage)
            self._storages[known.cdata] = known

    def has(self, storage):
        # One that expired is no other's: its place is kept with the reference.
        return bool(self._storages) and storage._cdata in self._storages

    def has_any_of(self, tensor):
        return bool(self._storages) and any(map(self.has, _plain(tensor)))


def _plain(tensor):
    """The storages of a tensor that have an object in Python."""
    inside = _storages.parts(tensor)
    if inside is not None:
        return [storage for part in inside for storage in _plain(part)]
    try:
        with torch._C.DisableTorchFunction():  # a subclass may answer itself
            return [tensor.untyped_storage()]
    except (NotImplementedError, RuntimeError, ValueError):
        return []  # it has no storage: nothing of it can be annotated
