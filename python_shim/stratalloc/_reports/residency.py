# SPDX-License-Identifier: Apache-2.0
"""residency(): on which tiers the memory of an object is."""

from __future__ import annotations

import dataclasses

from stratalloc._native import core as _core
from stratalloc._native.device_metrics import TIERS
from stratalloc._ownership import modules as _modules
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result
from stratalloc._rendering.table import Row, Table
from stratalloc._tiering import tiers as _tiers
from stratalloc.sizes import format_size


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Residency(Result):
    """Bytes of an object on each tier; also a mapping with these keys.

    Attributes:
      device: bytes on CUDA devices.
      host: bytes in host memory.
      disk: bytes in the spill file.

    They add up to the object's storages on CUDA devices, each counted once,
    and to the blocks of gradients.
    """

    device: int
    host: int
    disk: int

    def to_dict(self) -> dict[str, int]:
        """{"device", "host", "disk"}, in bytes."""
        return dataclasses.asdict(self)

    def _page(self, depth=None, all=False):  # noqa: A002
        total = sum(self.values())
        return Page([Table(("", "bytes"), [
            Row(tier, (format_size(size),), share=size / total if total else 0.0)
            for tier, size in self.items()])], depth, all)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{tier} {self[tier]}" for tier in TIERS)
        return f"<stratalloc.Residency in bytes: {sizes}>"


def residency(obj: object) -> Residency:
    """On which tiers the memory of an object is now.

    Nothing moves. Another thread may train meanwhile, or move memory.

    Args:
      obj: a module (its parameters and buffers, and gradients that it owns,
        as holders() has them), an optimizer (its state), a tensor, or any
        iterable or mapping of those. Memory on the CPU counts nothing.

    Returns: Residency, in bytes.

    Raises:
      NotEnabledError: before enable().
      TypeError: obj holds something else, or a tensor without memory is named.
      RuntimeError: memory of obj is another allocator's, or this is a forked
        child.
    """
    modules = []
    found = _tiers.residency(obj, modules)
    for tier, size in _gradients(modules).items():
        found[tier] += size
    return Residency(**found)


def _gradients(modules):
    """Bytes of gradients that the modules own, by tier. From the accounting:
    another thread may be replacing `.grad`."""
    owners = {_core.scope_name(scope) for module in modules
              for scope in _modules.scopes_below(module)}
    total = dict.fromkeys(TIERS, 0)
    for device in range(_core.device_count() if owners else 0):
        for row in _core.held(device)["rows"]:
            if row["category"] == "gradient" and row["owner"] in owners:
                for tier in TIERS:
                    total[tier] += row[tier]
    return total
