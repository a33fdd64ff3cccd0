# SPDX-License-Identifier: Apache-2.0
"""Scopes around nn.Module._apply: to, cuda, half and their kind.

The frame of a module that is moved has category parameter, or buffer if it has
buffers alone, lifetime persistent. When the outermost `_apply` has ended, the
whole tree is re-labelled: gradients, and buffers beside parameters, were charged
as parameters. Tensors that have a rule (_tiering/rules.py) are placed by it.

A class may override `_apply` and allocate after what it inherits has ended (an
RNN makes one flat buffer of its weights). So its own is wrapped, too: of every
class that exists when `install` runs, and of those made later (`wrap`). A class
that gets it from a base that is no module (FSDP2's) is given a wrapper of its
own. Of one module only the outermost pushes a frame.
"""

import functools
import threading
import types
import weakref

import torch
from torch.compiler import is_compiling

from stratalloc._native.stack import BUFFER, LIFETIME_PERSISTENT, PARAMETER
from stratalloc._ownership.construction import _subclasses, recognizer
from stratalloc._tiering import ruled as _ruled


class _Moving(threading.local):
    """Modules of this thread whose _apply has not returned, outer first."""

    def __init__(self):
        self.stack = []


def _wrapper(original, moves):
    @functools.wraps(original)
    def _apply(self, *args, **kwargs):
        if is_compiling() or not moves.active:
            return original(self, *args, **kwargs)
        stack = moves.moving.stack
        if stack and stack[-1] is self:
            return original(self, *args, **kwargs)
        if not stack and _ruled.some():
            with _ruled.Moved(self) as moved:
                args, kwargs = moved.placing(args, kwargs)
                return moves.move(self,
                                  lambda: original(self, *args, **kwargs))
        return moves.move(self, lambda: original(self, *args, **kwargs))

    return _apply


_is_ours = recognizer(_wrapper)


class Moves:
    """Wraps and unwraps; one per installation."""

    def __init__(self, native, owners, scope_of):
        self.native, self.owners, self.scope_of = native, owners, scope_of
        self.moving = _Moving()
        self.active = False
        self._wrapped = weakref.WeakSet()

    def install(self):
        self.active = True
        for cls in (torch.nn.Module, *_subclasses(torch.nn.Module)):
            self.wrap(cls)

    def uninstall(self):
        self.active = False
        for cls in list(self._wrapped):
            # Someone who wrapped on top of us keeps a wrapper that passes on.
            current = cls.__dict__.get("_apply")
            if not _is_ours(current):
                continue
            if _inherited(cls) is current.__wrapped__:
                del cls._apply
            else:
                cls._apply = current.__wrapped__
        self._wrapped.clear()

    def wrap(self, cls):
        """The `_apply` that modules of this class have runs in our frame."""
        original = cls.__dict__.get("_apply")
        if original is None:
            original = _inherited(cls)
            if _is_ours(original) or original is _of_modules(cls):
                return  # a module's class: wrapped there
        if not isinstance(original, types.FunctionType) or _is_ours(original):
            return
        try:
            cls._apply = _wrapper(original, self)
        except (AttributeError, TypeError):
            return  # its metaclass refuses; a report still labels it
        self._wrapped.add(cls)

    def move(self, module, apply):
        """_apply with the module's frame on top."""
        stack = self.moving.stack
        scope = self.owners.scopes.get(id(module))
        if scope is None:
            scope = self.scope_of(module)
        # Its own tensors only: the children push frames of their own.
        category = PARAMETER
        if not module._parameters and module._buffers:
            category = BUFFER
        below = self.native.depth()
        self.native.push(scope, category, LIFETIME_PERSISTENT)
        stack.append(module)
        try:
            return apply()
        finally:
            self.native.leave(below)
            stack.pop()
            if not stack:
                self.owners.relabel_tree(module)


def _inherited(cls):
    """The `_apply` that this class would have without its own."""
    return next((base.__dict__["_apply"] for base in cls.__mro__[1:]
                 if "_apply" in base.__dict__), None)


def _of_modules(cls):
    """The first that is a module's among those this class inherits."""
    return next((base.__dict__["_apply"] for base in cls.__mro__[1:]
                 if issubclass(base, torch.nn.Module)
                 and "_apply" in base.__dict__), None)
