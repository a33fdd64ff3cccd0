# SPDX-License-Identifier: Apache-2.0
"""evict() and restore(): move memory between the tiers by hand.

Both take what the user has (a module, an optimizer, a tensor, any iterable or
mapping of those, or nothing for everything evictable) and return bytes moved.
Only whole storages are named; what is pinned or in use stays where it is.
Addresses never change. A device that takes no part in tiering (no virtual
memory management, say) is passed over where nothing is named, else a
RuntimeError that says why. Sparse, nested and quantized tensors and wrapper
subclasses (DTensor) mean the tensors inside them (_native/storages.py).

A tensor without memory (meta, fake) that is named is a TypeError; in a module
or an optimizer it is passed over, as one on the CPU is.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._native.device_metrics import TIERS

if TYPE_CHECKING:
    import torch


def evict(obj: object = None, device: Device = None,
          to: Literal["host", "disk"] | None = None) -> int:
    """Moves memory off the device; returns the bytes that were moved.

    Args:
      obj: a module, an optimizer, a tensor, or any iterable or mapping of
        those; None: everything that may leave.
      device: as torch takes it; None: every device.
      to: None: to host memory, and to disk what finds no room there. "host":
        there alone; what finds no room stays, and what is on disk stays there.
        "disk": there alone, and what is in host memory goes there, too, and
        counts.

    A module's gradients go with its parameters and buffers. They are read from
    `.grad`, so while another thread trains the module, name its tensors.

    Returns: int, bytes in whole handles, each once; 0 before CUDA is
      initialised.

    Raises:
      NotEnabledError: before enable().
      RuntimeError: a device that was named takes no part in tiering, or `to`
        is a tier that is not used (a budget of 0).
      TypeError: obj holds something else, or a tensor without memory is named.
      ValueError: `to` is no such tier.
    """
    if to is not None and to not in TIERS[1:]:
        raise ValueError(
            f"stratalloc: memory is evicted to 'host' or 'disk', not {to!r}")
    return _move(functools.partial(_core.evict, to=to), obj, device)


def restore(obj: object = None, device: Device = None) -> int:
    """Brings memory back to the device; returns the bytes that arrived.

    A module's gradients come with its parameters and buffers; while another
    thread trains the module, name its tensors, as in evict(). With nothing
    named, as much comes back as there is room for. Raises
    torch.OutOfMemoryError when what was named does not fit together; what came
    back until then stays.
    """
    return _move(_core.restore, obj, device)


def residency(obj: object, modules: list[torch.nn.Module] | None = None
              ) -> dict[str, int]:
    """Bytes of an object's storages as {"device", "host", "disk"}. `modules`:
    as named() has it."""
    _state.require()
    total = [0, 0, 0]
    for ranges in named(obj, modules=modules).values():
        for address, size in ranges:
            for tier, value in enumerate(_core.residency(address, size)):
                total[tier] += value
    return dict(zip(TIERS, total))


def _move(function, obj, device):
    _state.require()
    index = None if device is None else device_index(device)
    found = {} if obj is None else named(obj)
    if not _core.initialized():
        return 0  # CUDA never ran: there is no block to move
    if obj is None:
        return function(_core.ALL_DEVICES if index is None else index, None)
    moved = 0
    for number, ranges in found.items():
        if index is None or index == number:
            moved += function(number, ranges)
    return moved


def device_index(device):
    """0 of 0, "cuda", "cuda:0", torch.device("cuda", 0); None = current."""
    import torch

    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError):
            raise ValueError(
                f"stratalloc: {device!r} names no device; write 0, \"cuda:0\" "
                "or a torch.device") from None
        if device.type != "cuda":
            raise ValueError(
                f"stratalloc: {device} is not a CUDA device")
        index = device.index
        if index is None:
            index = torch.cuda.current_device()
    if not 0 <= index < torch.cuda.device_count():
        raise ValueError(
            f"stratalloc: no CUDA device {index}; this process sees "
            f"{torch.cuda.device_count()}, numbered from 0")
    return index


def named(obj, all_of_it=False, modules=None):
    """{device: [(address, bytes)]} of the distinct CUDA storages of obj.

    `all_of_it`: what has no memory is an error wherever it is. `modules`: a
    list that gets the modules, whose gradients are then left out. Only the
    thread that trains may read these.
    """
    from stratalloc._native import storages as _storages

    if obj is None or isinstance(obj, _LEAVES):
        raise _names_nothing(obj)
    found = {}
    for tensor, owned in _tensors(obj, modules=modules):
        try:
            storages = _storages.of(tensor)
        except _storages.HasNoMemory:
            if owned and not all_of_it:
                continue
            raise
        for device, address, size in storages:
            found.setdefault(device, {})[address] = size
    return {device: list(ranges.items()) for device, ranges in found.items()}


def _tensors(obj, owned=False, modules=None):
    """Every (tensor, is it a module's or an optimizer's) of an object."""
    import torch

    if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
        raise TypeError("stratalloc: a storage is named by a tensor of it, "
                        "not by itself")
    if isinstance(obj, torch.Tensor):
        yield obj, owned
    elif isinstance(obj, torch.nn.Module):
        if modules is not None:
            modules.append(obj)
        for parameter in obj.parameters():
            yield parameter, True
            if modules is None and parameter.grad is not None:
                yield parameter.grad, True
        for buffer in obj.buffers():
            yield buffer, True
    elif isinstance(obj, torch.optim.Optimizer):
        yield from _tensors(dict(obj.state), owned=True)
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from _tensors(value, owned, modules)
    elif isinstance(obj, _LEAVES) or obj is None:
        return  # beside the tensors of a state_dict()
    elif hasattr(obj, "__iter__"):
        for value in obj:
            yield from _tensors(value, owned, modules)
    else:
        raise _names_nothing(obj)


_LEAVES = (str, bytes, int, float, bool)


def _names_nothing(obj):
    device = "; a device is named by device=" if isinstance(obj, int) else ""
    return TypeError(
        "stratalloc: evict, restore, residency, pin and unpin take a "
        "module, an optimizer, a tensor or an iterable of them, not "
        f"{type(obj).__name__}{device}")
