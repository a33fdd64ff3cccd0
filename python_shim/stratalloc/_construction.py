# SPDX-License-Identifier: Apache-2.0
"""Scopes around the construction of modules.

`torch.nn.Linear(..., device="cuda")` allocates its parameters inside
`__init__`, so that is where the module's frame (category parameter, lifetime
persistent) must be on top. Python has no hook around construction that
`nn.Module` could be given after the fact (its metaclass is `type`), so
`__init__` itself is wrapped: of every class that exists when `install` runs
and, through `nn.Module.__init_subclass__`, of every class made later. Only
the outermost `__init__` of an object pushes a frame; `super().__init__()`
passes through. The path is not known yet, the class's name stands in for it.

Not wrapped: ScriptModules (their metaclass wraps `__init__` itself) and
Lightning modules (`save_hyperparameters` reads the frames of the `__init__`s
above it). Their parameters are charged when they are registered.
"""

import functools
import threading
import types
import weakref

import torch
from torch.compiler import is_compiling

from stratalloc._stack import LIFETIME_PERSISTENT, PARAMETER

_READS_FRAMES = ("lightning", "pytorch_lightning", "lightning_fabric")


class _Building(threading.local):
    """Modules of this thread whose __init__ has not returned, outer first."""

    def __init__(self):
        self.stack = []


building = _Building()


def _wrapper(original, construction):
    push, pop = construction.native.push, construction.native.pop

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if is_compiling() or not construction.active:
            return original(self, *args, **kwargs)
        stack = building.stack
        if stack and stack[-1] is self:
            return original(self, *args, **kwargs)
        scope = construction.owners.class_scope(self)
        stack.append(self)
        push(scope, PARAMETER, LIFETIME_PERSISTENT)
        try:
            return original(self, *args, **kwargs)
        finally:
            pop()
            stack.pop()

    return __init__


def recognizer(wrapper):
    """Whether a function is one that `wrapper(original, of)` made, whatever it
    wraps: all of them share their code."""
    nothing = types.SimpleNamespace(push=None, pop=None)
    code = wrapper(
        lambda: None, types.SimpleNamespace(native=nothing)).__code__
    return lambda function: getattr(function, "__code__", None) is code


_is_ours = recognizer(_wrapper)


class Construction:
    """Wraps and unwraps; one per installation."""

    def __init__(self, native, owners):
        self.native = native
        self.owners = owners
        self.active = False
        self._wrapped = weakref.WeakSet()
        self._hook = None

    def install(self):
        module = torch.nn.Module
        self.active = True

        def __init_subclass__(cls, **kwargs):
            super(module, cls).__init_subclass__(**kwargs)
            if self.active:
                self._wrap(cls)

        self._hook = classmethod(__init_subclass__)
        module.__init_subclass__ = self._hook
        for cls in _subclasses(module):
            self._wrap(cls)

    def uninstall(self):
        self.active = False
        if torch.nn.Module.__dict__.get("__init_subclass__") is self._hook:
            del torch.nn.Module.__init_subclass__
        for cls in list(self._wrapped):
            # Someone who wrapped on top of us keeps a wrapper that passes on.
            current = cls.__dict__.get("__init__")
            if _is_ours(current):
                cls.__init__ = current.__wrapped__
        self._wrapped.clear()

    def _wrap(self, cls):
        original = cls.__dict__.get("__init__")
        if not isinstance(original, types.FunctionType) or _is_ours(original):
            return
        if issubclass(cls, torch.jit.ScriptModule):
            return
        if any(base.__module__.split(".", 1)[0] in _READS_FRAMES
               for base in cls.__mro__):
            return
        try:
            cls.__init__ = _wrapper(original, self)
        except (AttributeError, TypeError):
            return  # its metaclass refuses; registration still charges it
        self._wrapped.add(cls)


def _subclasses(cls):
    """All classes below `cls`, each once."""
    seen = set()
    todo = [cls]
    while todo:
        for sub in type.__subclasses__(todo.pop()):
            if sub not in seen:
                seen.add(sub)
                todo.append(sub)
    return seen
