# SPDX-License-Identifier: Apache-2.0
"""explain(): would a request be served, after what, and what would help."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device, Size
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result, frame
from stratalloc._rendering.table import Row, Table
from stratalloc._tiering import tiers as _tiers
from stratalloc.sizes import asked_size, format_size

if TYPE_CHECKING:
    import pandas

_SHOWN = 5  # blocks, for people
_OF_A_BLOCK = ("address", "bytes", "owner", "category")


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Explanation(Result):
    """What was found on a copy of the device's blocks; also a mapping.

    Attributes:
      size: bytes that were asked for.
      block: bytes that its block would take.
      served_by: the first of these after which it fits:
        "now" (what is free, or may grow), "waiting" (for other streams),
        "eviction", "headroom" (the same, and the part of the card that is left
        to others), or "nothing"; "limit": its scope may not own it (limit()).
        With eviction it is refused where room_needed is more than room_below;
        `fits` says so.
      certain: False where the answer depends on something else.
      depends_on: what that is: the driver, the tiers below, a capture under
        way; "" if nothing.
      leaves: bytes that would be evicted for it.
      may_leave: bytes that could be evicted.
      room_needed: bytes on host or disk for what leaves.
      room_below: bytes that host and disk have for it, with copies of what is
        on the device, which are given up for it. Of what a rule lets go to one
        of them alone no more than that one has.
      missing: bytes that are lacking with all that done.
      limit_helps: with `missing` more in gpu_limit or the memory fraction it
        would be served.
      frees: blocks whose end would serve it, as dicts with address, bytes,
        owner and category; empty if that is no less than what is missing.
      remedy: a sentence; "" if nothing is needed.
    """

    size: int
    block: int
    served_by: str
    certain: bool
    depends_on: str
    leaves: int
    may_leave: int
    room_needed: int
    room_below: int
    missing: int
    limit_helps: bool
    remedy: str
    frees: list[dict[str, Any]]

    @property
    def fits(self) -> bool:
        """Is it served: without eviction, or with as much as has room?"""
        if self.served_by in ("eviction", "headroom"):
            return self.room_needed <= self.room_below
        return self.served_by not in ("nothing", "limit")

    def to_dict(self) -> dict[str, Any]:
        """The attributes, and "fits"."""
        return {**dataclasses.asdict(self), "fits": self.fits}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame of `frees`; ImportError without pandas."""
        return frame(_OF_A_BLOCK, self.frees)

    def _page(self, depth=None, all=False):  # noqa: A002
        outcome = self.served_by
        if outcome in ("eviction", "headroom") and not self.fits:
            outcome = "no room"
        parts = [f"{format_size(self.size)}: {_OUTCOMES[outcome](self)}"]
        if self.remedy:
            parts.append(self.remedy)
        if self.depends_on:
            parts.append(f"That depends on {self.depends_on}.")
        if self.frees:
            parts.append(_blocks(self.frees, len(self.frees) if all
                                 else _SHOWN))
        return Page(parts, depth, all)

    def __repr__(self):
        return (f"<stratalloc.Explanation of {self.size} bytes: served by "
                f"{self.served_by}>")


def _blocks(frees, most):
    hidden = frees[most:]
    rest = "" if not hidden else (
        f"and {len(hidden)} more, "
        f"{format_size(sum(block['bytes'] for block in hidden))}; "
        "text(all=True) has them")
    return Table(
        ("it helps if these end", "bytes"),
        [Row(block["owner"], (format_size(block["bytes"]),),
             (block["category"],)) for block in frees[:most]], rest)


_OUTCOMES = {
    "limit": lambda said: "refused by a limit of the scope that asks",
    "now": lambda said: "served from what is free",
    "waiting": lambda said: "served once other streams are done with what was "
                            "freed",
    "eviction": lambda said: f"served if {format_size(said.leaves)} are "
                             f"evicted; {format_size(said.may_leave)} may leave",
    "headroom": lambda said: f"served if {format_size(said.leaves)} are "
                             "evicted and the memory that is left to others on "
                             "the card is taken",
    "no room": lambda said: f"likely refused: {format_size(said.leaves)} would "
                            "have to leave, and the host and the disk have room for "
                            f"{format_size(said.room_below)}",
    "nothing": lambda said: f"refused; {format_size(said.missing)} are missing "
                            "even with everything evicted that may leave",
}


def explain(size: Size, device: Device = None) -> Explanation:
    """Could an allocation of this size succeed now? If not, why, and what helps?

    Nothing is allocated. The request is tried on a copy of the device's blocks,
    for the current stream and for the scope that is open on this thread: inside
    a module other free memory is used than outside (lifetime classes). Other
    threads and processes go on meanwhile.

    Args:
      size: bytes, or text as "2 GiB".
      device: as torch takes it; None: the current one.

    Returns: Explanation, sizes in bytes.

    Raises:
      ValueError: size is 0, negative or unreadable, or the device is none of
        this machine's CUDA devices.
      NotEnabledError: before enable().
      RuntimeError: there is no GPU, or the driver does not answer.
    """
    import torch

    _state.require()
    wanted = asked_size("explain", size, least=1)
    torch.cuda.init()
    _state.require()  # of an allocator that was to come with CUDA
    index = _tiers.device_index(device)
    stream = torch.cuda.current_stream(index).cuda_stream
    return Explanation(**_core.explain(index, wanted, stream))
