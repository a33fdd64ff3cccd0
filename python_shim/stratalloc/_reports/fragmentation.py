# SPDX-License-Identifier: Apache-2.0
"""fragmentation(): what a device has reserved and nobody has, and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result, dicts, frame
from stratalloc._rendering.table import Row, Table
from stratalloc._tiering import tiers as _tiers
from stratalloc.sizes import format_size

if TYPE_CHECKING:
    import pandas

_SHOWN = 10  # holes, for people


@dataclasses.dataclass(frozen=True)
class Hole:
    """Free bytes in a handle that something alive keeps.

    Attributes:
      address: of the handle.
      bytes: of the handle.
      free: bytes that cannot leave while `blocks` blocks live in it.
      blocks: number of blocks.
      owner: of the oldest of these blocks.
      category: of the oldest of these blocks.
      block_bytes: size of the oldest of these blocks.
      age: operators that the device ran since that block was allocated; None
        where tiering is off, because nothing counts them.
      lifetime: the class of the handle: unknown, persistent, gradient,
        optimizer or transient.
    """

    address: int
    bytes: int
    free: int
    blocks: int
    owner: str
    category: str
    block_bytes: int
    age: int | None
    lifetime: str


class Fragmentation(Result):
    """Bytes of one device; also a mapping with the keys of to_dict().

    allocated + pending + stranded + releasable + in_private_pools = reserved.

    Attributes:
      device: index of the device.
      reserved: bytes, as torch.cuda.memory_reserved() has them.
      allocated: bytes, as torch.cuda.memory_allocated() has them.
      rounding: allocated bytes beyond those that were requested.
      pending: bytes that are freed, and that other streams still use.
      stranded: free bytes in handles that live blocks keep; see `holes`.
      separated: of the stranded, the bytes that it costs that lifetime classes
        have handles of their own.
      releasable: bytes of handles that are free as a whole: any request may
        have them, and torch.cuda.empty_cache() gives them back.
      in_private_pools: the same, but of CUDA graphs' and MemPools' pools.
      holes: list of Hole, the most free bytes first.
    """

    _BYTES = ("reserved", "allocated", "rounding", "pending", "stranded",
              "separated", "releasable", "in_private_pools")

    device: int
    holes: list[Hole]
    reserved: int
    allocated: int
    rounding: int
    pending: int
    stranded: int
    separated: int
    releasable: int
    in_private_pools: int

    def __init__(self, device: int, sizes: dict[str, int],
                 holes: list[Hole]) -> None:
        self.device = device
        for name in self._BYTES:
            setattr(self, name, sizes.get(name, 0))
        self.holes = holes

    def to_dict(self) -> dict[str, Any]:
        """{"device", the attributes, "holes": [{...}]}."""
        return {"device": self.device,
                **{name: getattr(self, name) for name in self._BYTES},
                "holes": dicts(self.holes)}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a line for each hole; ImportError without
        pandas."""
        return frame([field.name for field in dataclasses.fields(Hole)],
                     dicts(self.holes))

    def _page(self, depth=None, all=False):  # noqa: A002
        parts = [f"{format_size(self.reserved)} reserved on device "
                 f"{self.device}", self._bar(), self._sums()]
        if self.holes:
            parts += ["", _holes(self.holes, len(self.holes) if all
                                 else _SHOWN)]
        return Page(parts, depth, all)

    def _bar(self):
        return _plot_svg.Bars(f"reserved on device {self.device}", [
            ("reserved", {"allocated": self.allocated, "pending": self.pending,
                          "stranded": self.stranded,
                          "releasable": self.releasable,
                          "in private pools": self.in_private_pools})])

    def _sums(self):
        def row(name, size, note, level=0):
            share = size / self.reserved if self.reserved else 0.0
            return Row(name, (format_size(size),), (note,), level + 1, share)

        return Table(("", ""), [
            row("allocated", self.allocated, "in use"),
            row("of it rounding", self.rounding, "nobody asked for it", 1),
            row("pending", self.pending, "freed, other streams still use it"),
            row("stranded", self.stranded,
                "free, in handles that something keeps"),
            row("of it separated", self.separated,
                "lifetime classes have handles of their own", 1),
            row("releasable", self.releasable, "free for every request"),
            row("in private pools", self.in_private_pools,
                "free, for graphs and MemPools alone")])

    def __repr__(self):
        return (f"<stratalloc.Fragmentation of device {self.device}: "
                f"{self.stranded} of {self.reserved} bytes stranded in "
                f"{len(self.holes)} holes>")


def _holes(holes, most):
    shown, hidden = holes[:most], holes[most:]
    rest = "" if not hidden else (
        f"and {len(hidden)} smaller holes, "
        f"{format_size(sum(hole.free for hole in hidden))} free; "
        "text(all=True) has them")
    return Table(
        ("holes are kept by", "free", "of", "its block"),
        [Row(hole.owner, tuple(map(format_size, (hole.free, hole.bytes,
                                                 hole.block_bytes))),
             tuple(_about(hole))) for hole in shown], rest, "it is")


def _about(hole):
    yield hole.category
    if hole.blocks > 1:
        yield f"the oldest of {hole.blocks} blocks"
    if hole.age is not None:
        yield f"age {hole.age} operators"


def fragmentation(device: Device = None) -> Fragmentation:
    """Explains memory that is reserved and not allocated.

    Exact. Walks all blocks of the device.

    Args:
      device: as torch takes it; None: the current one.

    Returns: Fragmentation, in bytes; zeros before the device is used.

    Raises:
      NotEnabledError: before enable().
      ValueError: the device is none of this machine's CUDA devices.
    """
    _state.require()
    if not _core.initialized():
        return Fragmentation(0, {}, [])
    index = _tiers.device_index(device)
    values = _core.fragmentation(index)
    counted = _core.anything_evictable()
    holes = [Hole(address=hole["address"], bytes=hole["bytes"],
                  free=hole["free"], blocks=hole["blocks"],
                  owner=hole["oldest"]["owner"],
                  category=hole["oldest"]["category"],
                  block_bytes=hole["oldest"]["bytes"],
                  age=hole["age"] if counted else None,
                  lifetime=hole["lifetime"])
             for hole in values.pop("holes", [])]
    return Fragmentation(index, values, holes)
