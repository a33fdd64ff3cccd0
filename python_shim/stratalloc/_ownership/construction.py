# SPDX-License-Identifier: Apache-2.0
"""Scopes around the construction of modules and of optimizers.

`torch.nn.Linear(..., device="cuda")` allocates its parameters inside
`__init__`, so that is where the module's frame (category parameter, lifetime
persistent) must be on top. Python has no hook around construction that
`nn.Module` could be given after the fact (its metaclass is `type`), so
`__init__` itself is wrapped: of every class that exists when `install` runs
and, through `nn.Module.__init_subclass__`, of every class made later. Only
the outermost `__init__` of an object pushes a frame; `super().__init__()`
passes through. The path is not known yet, the class's name stands in for it.
An optimizer may make its state there (Adagrad does): the same, with
`torch.optim.Optimizer` in the place of `nn.Module`, a frame of its own, and a
look at the state when `__init__` has ended.

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

_READS_FRAMES = ("lightning", "pytorch_lightning", "lightning_fabric")


class Building(threading.local):
    """Objects of this thread whose __init__ has not returned, outer first."""

    def __init__(self):
        self.stack = []


building = Building()  # of modules


def _wrapper(original, construction):
    native = construction.native
    depth, push, leave = native.depth, native.push, native.leave
    building, frame = construction.building, construction.frame
    ended = construction.ended

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        if is_compiling() or not construction.active:
            return original(self, *args, **kwargs)
        stack = building.stack
        if stack and stack[-1] is self:
            return original(self, *args, **kwargs)
        top = frame(self)
        stack.append(self)
        below = depth()
        push(*top)
        try:
            original(self, *args, **kwargs)
        finally:
            leave(below)
            stack.pop()
        ended(self)

    return __init__


def recognizer(wrapper):
    """Whether a function is one that `wrapper(original, of)` made, whatever it
    wraps: all of them share their code."""
    nothing = types.SimpleNamespace(depth=None, push=None, leave=None)
    code = wrapper(lambda: None, types.SimpleNamespace(
        native=nothing, building=None, frame=None, ended=None)).__code__
    return lambda function: getattr(function, "__code__", None) is code


_is_ours = recognizer(_wrapper)


class Construction:
    """Wraps and unwraps; one per base class and installation.

    frame: object -> (scope, category, lifetime), on top in its __init__;
    ended: called with the object when the outermost __init__ has returned; made:
    with each class that is made from now on.
    """

    def __init__(self, native, base, building, frame, ended,
                 made=lambda cls: None):
        self.native = native
        self.base = base
        self.building, self.frame, self.ended = building, frame, ended
        self.made = made
        self.active = False
        self._wrapped = weakref.WeakSet()
        self._hook = None

    def install(self):
        base = self.base
        self.active = True

        def __init_subclass__(cls, **kwargs):
            super(base, cls).__init_subclass__(**kwargs)
            if self.active:
                self._wrap(cls)
                self.made(cls)

        self._hook = classmethod(__init_subclass__)
        base.__init_subclass__ = self._hook
        for cls in _subclasses(base):
            self._wrap(cls)

    def uninstall(self):
        self.active = False
        if self.base.__dict__.get("__init_subclass__") is self._hook:
            del self.base.__init_subclass__
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
