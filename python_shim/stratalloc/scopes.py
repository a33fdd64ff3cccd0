# SPDX-License-Identifier: Apache-2.0
"""stratalloc.scope(): a name for what a piece of code allocates."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch.compiler import is_compiling

from stratalloc._native import stack as _stack
from stratalloc._native.argument_types import Category
from stratalloc._ownership import scope_names as _scope_names

_Function = TypeVar("_Function", bound=Callable[..., Any])

# A category decides the lifetime class, and so whether the bytes may be
# evicted; without one the surrounding frame's both stay.
_LIFETIMES = {
    _stack.PARAMETER: _stack.LIFETIME_PERSISTENT,
    _stack.BUFFER: _stack.LIFETIME_PERSISTENT,
    _stack.GRADIENT: _stack.LIFETIME_GRADIENT,
    _stack.OPTIMIZER_STATE: _stack.LIFETIME_OPTIMIZER,
    _stack.ACTIVATION: _stack.LIFETIME_TRANSIENT,
    _stack.INPUT: _stack.LIFETIME_UNKNOWN,
    _stack.TEMPORARY: _stack.LIFETIME_TRANSIENT,
    _stack.WORKSPACE: _stack.LIFETIME_TRANSIENT,
    _stack.UNKNOWN: _stack.LIFETIME_UNKNOWN,
}


class _Open(threading.local):
    """Scopes that this thread is in: (scope, frames below), the outer first."""

    def __init__(self):
        self.frames = []


_open = _Open()


class scope:  # noqa: N801 - used like a function, as torch.no_grad is
    """Charges what is allocated inside to `name`.

        with stratalloc.scope("kv cache", category="buffer"):
            cache = torch.empty(1 << 20, device="cuda")

        @stratalloc.scope("preprocess")
        def preprocess(batch): ...

    Scopes nest: inside another scope or a module the path is
    "outer/inner". The stack belongs to the thread; a thread started inside
    starts with an empty one. Leaving ends what was opened inside and stays
    open: of coroutines that share a thread, the scope that was entered later
    ends with the first. Entering and leaving costs about a microsecond
    and moves no bytes. Under torch.compile it does nothing (Dynamo breaks the
    graph at a `with` on an object made outside the compiled function, as for
    any context manager: write `with stratalloc.scope(...)`).

    Args:
      name: a non-empty str without NUL. Each distinct path is kept for the
        life of the process: no step numbers in it.
      category: one of "parameter", "buffer", "gradient", "optimizer_state",
        "activation", "input", "temporary", "workspace" and "unknown": what the
        bytes are charged as, and with it whether they may be evicted
        (everything but "activation", "temporary" and "workspace"; an
        activation is "temporary" while its scope lasts). "optimizer", of
        earlier versions, is "optimizer_state". None: as around it.

    Raises:
      TypeError: name is not a str; or a generator, coroutine or class is
        decorated (its body would run outside the scope).
      ValueError: name is empty, holds a NUL or is "(no scope)" or "(other
        scopes)", or the category does not exist.
    """

    __slots__ = ("_name", "_category", "_functions", "_paths")

    def __init__(self, name: str, category: Category | None = None) -> None:
        _scope_names.check("scope", name)
        self._name = name
        self._category = _scope_names.category("scope", category)
        self._functions = None
        self._paths = {}  # outer scope id -> our scope id there

    def __enter__(self) -> scope:
        if is_compiling():
            return self
        functions = self._functions
        if functions is None:
            functions = self._functions = _stack.functions()
        outer, category, lifetime = functions.current()
        inner = self._paths.get(outer)
        if inner is None:
            path = self._name
            if outer != _stack.ROOT:
                path = f"{functions.name(outer)}/{path}"
            inner = self._paths[outer] = functions.intern(path)
        if self._category is not None:
            category = self._category
            lifetime = _LIFETIMES[category]
        below, frames = functions.depth(), _open.frames
        while frames and frames[-1][1] >= below:
            frames.pop()  # it has ended with the module that it was in
        frames.append((self, below))
        functions.push(inner, category, lifetime)
        return self

    def __exit__(self, *exception: object) -> Literal[False]:
        if is_compiling():
            return False
        # A generator may be closed by another thread, whose frames are none of
        # ours, or when what it was in has ended, and our frame with it.
        frames = _open.frames
        for at in range(len(frames) - 1, -1, -1):
            if frames[at][0] is self:
                self._functions.leave(frames[at][1])
                del frames[at:]
                break
        return False

    def __call__(self, function: _Function) -> _Function:
        if inspect.isclass(function) or not callable(function):
            raise TypeError(
                f"stratalloc.scope decorates functions, not {function!r}")
        if (inspect.iscoroutinefunction(function)
                or inspect.isgeneratorfunction(function)
                or inspect.isasyncgenfunction(function)):
            raise TypeError(
                f"stratalloc.scope cannot decorate {function.__qualname__}: a "
                "generator or coroutine runs outside the call; use `with "
                "stratalloc.scope(...)` around the steps inside it")

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            if is_compiling():
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def __repr__(self):
        return f"stratalloc.scope({self._name!r})"
