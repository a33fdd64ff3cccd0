# SPDX-License-Identifier: Apache-2.0
"""SnakeHooks: which functions and methods of PyTorch make storages.

The factories are those that PyTorch itself lists as taking a device, and their
kin ending in _like. The deep ones are all that it lists as overridable, of its
functions and of tensors, without those that work in place and those that make
nothing, and Python's operators. Neither is a list of ours, so a new PyTorch's
functions are among them.

A storage that one of these returns is charged if it is none of its arguments'
and is credited when it dies.
"""

import functools

import torch
from torch.utils import _device

from stratalloc.compat.memlord import _handles, _objects

_NAMESPACES = (torch, torch.functional, torch.nn.functional, torch.linalg,
               torch.fft, torch.special, torch.nested)
# Methods that Python calls for operators; not __iadd__ and its kin, which work
# in place, nor what makes no tensor (__len__, __bool__, __setitem__).
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul",
           "and", "or", "xor", "lshift", "rshift")
_OPERATORS = frozenset(
    f"__{name}__" for name in (
        *_BINARY, *(f"r{name}" for name in _BINARY), "neg", "pos", "abs",
        "invert", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "deepcopy"))


class SnakeHooks(_handles.Handle):
    """What hook_into_python() returns: functions are listened to."""


def places(factories, deep):
    """[(owner, name)] to listen to."""
    return [*(_factories() if factories else ()), *(_deep() if deep else ())]


@functools.cache
def _factories():
    made = {id(each) for each in _device._device_constructors()}
    return [(owner, name) for owner in _NAMESPACES
            for name, function in sorted(vars(owner).items())
            if id(function) in made
            or (owner is torch and name.endswith("_like")
                and not name.startswith("_"))]


@functools.cache
def _deep():
    known = torch.overrides.get_overridable_functions()
    listed = {id(each) for functions in known.values() for each in functions}
    factories = set(_factories())
    found = [(owner, name) for owner in _NAMESPACES
             for name, function in sorted(vars(owner).items())
             if id(function) in listed and _makes(name)]
    found += [(torch.Tensor, name) for name in dir(torch.Tensor)
              if _is_method(name) and (name in _OPERATORS or _makes(name))]
    return [each for each in found if each not in factories]


def _makes(name):
    return not name.startswith("_") and not name.endswith("_")


def _is_method(name):
    """One that is called with the tensor: no property, no class method."""
    written = next(vars(base)[name] for base in torch.Tensor.__mro__
                   if name in vars(base))
    return callable(written) and not isinstance(
        written, (type, staticmethod, classmethod))


def is_of_arguments(storage, values):
    """Is this the storage of one of the tensors in a call's arguments?"""
    for value in values:
        if isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunction():
                try:
                    if _objects.storage_of(value) is storage:
                        return True
                except (NotImplementedError, RuntimeError, ValueError):
                    continue
        elif isinstance(value, (tuple, list)) and is_of_arguments(storage,
                                                                  value):
            return True
    return False
