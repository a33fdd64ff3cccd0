# SPDX-License-Identifier: Apache-2.0
"""The tensors that are in what a model is called with, however it is packed.

Looking runs no code of the program's: of a mapping that is no dict, and of a
dataclass, what the object itself holds is looked at. And it ends: a container
that has held no tensor for so long holds data of another kind.
"""

import collections
import collections.abc

import torch

# Values without a tensor, one after another, after which the rest of a container
# is not looked at: of the arguments, of what is in one, in that, and in that.
# Those of containers inside count, so the first is about a call's most.
_MOST = (float("inf"), 1024, 64, 16)
_DEEPEST = len(_MOST) - 1
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))


def each_tensor(values, use, level=0):
    """Calls `use` with each tensor in `values`, at most three containers deep.

    Returns how many values were looked at, or -1 if a tensor was among them.
    """
    looks, found, most = 0, False, _MOST[level]
    for value in values:
        if isinstance(value, torch.Tensor):
            use(value)
            looks, found = 0, True
            continue
        looks += 1
        inside = _inside(value) if level < _DEEPEST else None
        if inside:
            more = each_tensor(inside, use, level + 1)
            looks, found = (0, True) if more < 0 else (looks + more, found)
        if looks >= most:
            break
    return -1 if found else looks


def _inside(value):
    """The values that a container has, or None."""
    kind = type(value)
    if kind in _PLAIN:
        return None
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, collections.UserDict):
        return value.data.values()
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is None and not isinstance(value, collections.abc.Mapping):
        return None
    held = getattr(value, "__dict__", None)
    if held is not None:
        return held.values()
    return [getattr(value, name, None) for name in fields or ()]  # slots
