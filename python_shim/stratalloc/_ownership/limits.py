# SPDX-License-Identifier: Apache-2.0
"""limit(): how much a scope, or the whole process, may own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device, Size
from stratalloc._native.started import Started
from stratalloc._ownership import modules as _modules
from stratalloc._ownership import scope_names as _scope_names
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Answer
from stratalloc._tiering import tiers as _tiers
from stratalloc.sizes import asked_size, format_size

if TYPE_CHECKING:
    import torch


_holding = {}  # (device, path) -> the Limit that holds


class Limit(Started, Answer):
    """A limit that is in force until close() or the end of its `with`.

    Attributes:
      scope: str, the path that is limited.
      bytes: that it may own.
      device: index of the device.
    """

    scope: str
    bytes: int
    device: int

    def __init__(self, path: str, size: int, device: int,
                 of_module: bool) -> None:
        self.scope, self.bytes, self.device = path, size, device
        self._of_module = of_module
        self._outer = _holding.get((device, path))
        self._closed = False
        _holding[device, path] = self

    def __enter__(self) -> Limit:
        if self._closed:
            raise RuntimeError(f"stratalloc.limit: the limit of {self.scope} "
                               "is closed; call limit() again")
        return self

    def close(self) -> None:
        """Ends the limit, and restores the one that it replaced, if that is not
        closed. A later limit of the scope stays in force."""
        self._closed = True
        key = (self.device, self.scope)
        if _holding.get(key) is not self:
            return
        outer = self._outer
        while outer is not None and outer._closed:
            outer = outer._outer
        if outer is None:
            del _holding[key]
        else:
            _holding[key] = outer
        _core.limit_scope(*key, None if outer is None else outer.bytes)

    def remove(self) -> None:
        """Ends every limit of the scope. Earlier spelling of close()."""
        self._closed = True
        _holding.pop((self.device, self.scope), None)
        _core.limit_scope(self.device, self.scope, None)

    def to_dict(self) -> dict[str, Any]:
        """{"scope", "bytes", "device"}."""
        return {"scope": self.scope, "bytes": self.bytes, "device": self.device}

    def _page(self, depth=None, all=False):  # noqa: A002
        state = ", closed" if self._closed else ""
        return Page([f"{self.scope} on device {self.device}: limited to "
                     f"{format_size(self.bytes)}{state}"], depth, all)

    def __repr__(self) -> str:
        return (f"<stratalloc.Limit of {self.scope} on device {self.device}: "
                f"{format_size(self.bytes)}>")

    def _go_to(self, path):
        """Its module has another path from now on."""
        key = (self.device, self.scope)
        del _holding[key]
        _core.limit_scope(*key, None)
        _holding[self.device, path] = limit = self
        _core.limit_scope(self.device, path, self.bytes)
        while limit is not None:
            limit.scope, limit = path, limit._outer


def _follow(paths):
    """Limits of modules go with them. paths: old path -> new path."""
    for (_, path), limit in list(_holding.items()):
        if path in paths and limit._of_module:
            limit._go_to(paths[path])


_modules.when_moved(_follow)


def limit(size: Size, scope: str | torch.nn.Module,
          device: Device = None) -> Limit:
    """Sets a memory limit for a scope.

    A scope owns what was allocated in it and in everything below its path, in
    forward and backward, on all tiers together: an eviction frees nothing of
    it. An allocation beyond the limit raises torch.OutOfMemoryError, which
    names the scope and the largest owners below it; nothing is evicted for it.
    What the scope owns already stays, and what becomes its own otherwise (by a
    re-label or a restore) is counted and not refused. Limits of the whole
    process are gpu_limit and torch.cuda.set_per_process_memory_fraction.

        stratalloc.limit("2 GiB", scope="kv cache")
        with stratalloc.limit("512 MiB", scope=model.encoder):
            model(batch)

    Args:
      size: bytes, or text as "2 GiB"; 0 refuses everything.
      scope: a path (as stratalloc.scope and reports spell it, and as it may
        yet come), or an nn.Module: its path, and when it becomes a part of
        a model that is named later, its path there.
      device: as torch takes it; None: the current one.

    Returns: Limit, in force until its close(), or as a context manager. A later
    one of the same scope and device replaces it.

    Raises:
      ValueError: size is negative or unreadable, the scope's name is empty, or
        there is no such device.
      TypeError: scope is neither a str nor a module.
      NotEnabledError: before enable().
      RuntimeError: there is no GPU.
    """
    import torch

    _state.require()
    wanted = asked_size("limit", size, least=0)
    if isinstance(scope, torch.nn.Module):
        path = _modules.path_of(scope)
    elif isinstance(scope, str):
        _scope_names.check("limit", scope, "scope")
        path = scope
    else:
        raise TypeError("stratalloc.limit: scope must be a str or an "
                        f"nn.Module, not {type(scope).__name__}")
    torch.cuda.init()
    _state.require()  # of an allocator that was to come with CUDA
    index = _tiers.device_index(device)
    _core.limit_scope(index, path, wanted)
    return Limit(path, wanted, index, of_module=path is not scope)
