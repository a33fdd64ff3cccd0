# SPDX-License-Identifier: Apache-2.0
"""The largest single operator of a run: what no eviction can make smaller.

Operators on lists do not count, they can run in slices.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Sees every operator below autograd; keeps the one with most bytes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.name = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        values = [*args, *(kwargs or {}).values()]
        if not any(isinstance(value, (tuple, list)) and value
                   and isinstance(value[0], torch.Tensor)
                   for value in values):
            size = _bytes([*values, *outputs])
            if size > self.bytes:
                self.bytes, self.name = size, str(function)
        return result


def _bytes(values):
    storages = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
