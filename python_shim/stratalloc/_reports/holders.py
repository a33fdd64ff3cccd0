# SPDX-License-Identifier: Apache-2.0
"""holders() and peak(): who holds memory, now or when the device held most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from stratalloc._native import core as _core
from stratalloc._native import stack as _stack
from stratalloc._native import older_spellings
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._native.device_metrics import TIERS
from stratalloc._ownership import sites as _sites
from stratalloc._rendering import plot_svg as _plot_svg
from stratalloc._rendering import table as _table
from stratalloc._rendering import tree as _tree
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Rows
from stratalloc._reports import reports as _reports
from stratalloc._tiering import tiers as _tiers

_BY = ("owner", "category", "site", "tensor")
_AT = ("now", "peak")
_WHEN = {"now": "now", "peak": "at its peak",  # these of a recording:
         "start": "at its start", "end": "at its end"}


@dataclasses.dataclass(frozen=True)
class Holder:
    """Memory of one owner and category on one tier.

    Attributes:
      name: the owner, as "GPT.layers.0"; by category or by line of code that.
      category: of the memory, as scope() has them.
      bytes: on `tier`.
      count: blocks that the bytes are in; None: not known.
      tier: "device", "host" or "disk"; in a Mark "all".
    """

    name: str
    category: str
    bytes: int
    count: int | None
    tier: str


class Holders(Rows):
    """Rows that add up to `total` bytes of `device`, the largest first.

    Attributes:
      total: bytes. At the peak: of the device alone.
      at: "now" or "peak".
      device: index of the device.
      rows: list of Holder.

    Also a mapping with the keys of to_dict(). str() is a tree for people, as
    long as the terminal is high; text(depth=..., all=True) has the rest. By
    category and by line of code it is a list.
    """

    _row = Holder

    rows: list[Holder]

    def __init__(self, total: int, at: str, device: int,
                 rows: Iterable[Holder], by: str = "owner") -> None:
        self.total, self.at, self.device = total, at, device
        self.rows = sorted(rows, key=lambda row: (
            -row.bytes, _table.natural(row.name), row.category, row.tier))
        self._is_tree = by in ("owner", "tensor")
        self._is_drawn = by != "category"  # a list of which is its own bars

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        # Where something is on a lower tier, each tier has a column.
        tiers = [tier for tier in TIERS
                 if any(row.tier == tier for row in self.rows)]
        if tiers in ([], ["device"]):
            tiers = []
        columns = [*_tree.BYTES, *map(_tree.Column, tiers)]
        rows = [(row.name, row.category, row.bytes,
                 *(row.bytes if row.tier == tier else 0 for tier in tiers))
                for row in self.rows]
        when = _WHEN.get(self.at, f"after event {self.at}")
        heading = f"device {self.device} {when}"
        return Page([*self._bars(heading),
                     _tree.Tree(rows, columns, heading, self._is_tree)],
                    depth, all, **how)

    def _bars(self, title):
        if not self._is_drawn:
            return []
        tiers = [tier for tier in TIERS
                 if any(row.tier == tier for row in self.rows)]
        return [_plot_svg.Bars(title + " by category", [
            (tier, bytes_by_category(row for row in self.rows
                                      if row.tier == tier))
            for tier in tiers])] if tiers else []

    def __repr__(self):
        return (f"<stratalloc.Holders of device {self.device} {self.at}: "
                f"{self.total} bytes in {len(self.rows)} rows>")


def holders(by: Literal["owner", "category", "site", "tensor",
                        "module"] = "owner",
            at: Literal["now", "peak"] = "now",
            device: Device = None) -> Holders:
    """Who holds memory.

    Args:
      by: "owner": a row per owner, category and tier; "module" is its earlier
        spelling. "category": a row per category and tier. "tensor": now only;
        parameters, buffers and optimizer state by name, the rest, gradients
        too, by owner. "site": now only; a row per line of user code, category
        and tier, of the blocks that were sampled (those of 64 KiB or more all
        are), and the rest as "(not sampled)". Recorded from
        enable(telemetry="callsites") on; where they are not one row says so.
      at: "now", on all tiers; or "peak": what the device held when that was
        the most since the start or reset_peak(). The peak's rows have the owners
        and categories of that moment: a gradient that was named later is where
        it was charged then.
      device: as torch takes it; None: the current one.

    Returns: Holders; rows add up to its total, in bytes. At "now" that is
    stats()["live"], at "peak" torch.cuda.max_memory_allocated(); 0 before CUDA
    is initialised.

    Raises:
      ValueError: by or at is none of these, the past is asked for tensors or
        sites, or the device is none of this machine's CUDA devices.
      NotEnabledError: before enable().
    """
    by = older_spellings.by(by)
    if by not in _BY:
        raise ValueError(f"stratalloc.holders: by={by!r} does not exist; use "
                         f"one of {', '.join(_BY)}")
    if at not in _AT:
        raise ValueError(f"stratalloc.holders: at={at!r} does not exist; use "
                         "now or peak")
    if by == "tensor" and at == "peak":
        raise ValueError("stratalloc.holders: tensors of the peak are gone; "
                         "use by=\"owner\", or at=\"now\"")
    if by == "site" and at == "peak":
        raise ValueError("stratalloc.holders: a block keeps its site only "
                         "while it lives, so nobody knows the peak's; use "
                         "at=\"now\" near the peak, or by=\"owner\"")
    values = _reports.held(device)
    if not values:  # before the first use of CUDA
        return Holders(0, at, 0, [], by)
    rows = list(_now(values["rows"]) if at == "now"
                else _at_peak(values["rows"]))
    total = sum(row.bytes for row in rows)
    if by == "category":
        rows = _by_category(rows)
    elif by == "tensor":
        rows = _by_tensor(rows, values["device"])
    elif by == "site":
        rows = _by_site(values["device"], total)
        total = sum(row.bytes for row in rows)  # of the moment of its rows
    return Holders(total, at, values["device"], rows, by)


def peak(device: Device = None) -> Holders:
    """holders(at="peak"): what the device held when that was the most.

    Args:
      device: as torch takes it; None: the current one.

    Returns: Holders; rows add up to torch.cuda.max_memory_allocated(), in bytes.

    Raises:
      ValueError: the device is none of this machine's CUDA devices.
      NotEnabledError: before enable().
    """
    return holders(at="peak", device=device)


def reset_peak(device: Device = None) -> None:
    """Begins the peaks of a device anew, at what it holds now.

    The same as torch.cuda.reset_peak_memory_stats(): peak(), the peaks of
    allocated, reserved, active and requested bytes, and those of scopes in
    report(). Peaks of host memory are of the whole process and stay.

    Args:
      device: as torch takes it; None: the current one.

    Raises:
      NotEnabledError: before enable().
      ValueError: the device is none of this machine's CUDA devices.
    """
    _state.require()
    if not _core.initialized():
        return  # there is no peak yet
    import torch

    torch.cuda.reset_peak_memory_stats(_tiers.device_index(device))


def peaks() -> list[Holders]:
    """[Holders] at the peak of each device; none before CUDA is initialised."""
    if not _core.initialized():
        return []
    import torch

    return [peak(device) for device in range(torch.cuda.device_count())]


def _now(held):
    for row in held:
        on = [tier for tier in TIERS if row[tier]]
        for tier in on:
            # A block may lie on two tiers; then it is of neither.
            yield Holder(row["owner"], row["category"], row[tier],
                         row["blocks"] if len(on) == 1 else None, tier)


def _at_peak(held):
    for row in held:
        if row["at_peak"]:
            yield Holder(row["owner"], row["category"], row["at_peak"], None,
                         "device")


def _by_site(device, total):
    found = _sites.look(device)
    if found is None:
        return [Holder(_sites.NOT_RECORDED, "unknown", total, None, "device")]
    return list(_now(found.rows))


def bytes_by_category(rows):
    """category -> bytes."""
    sums = {}
    for row in rows:
        sums[row.category] = sums.get(row.category, 0) + row.bytes
    return sums


def _by_category(rows):
    sums = {}
    for row in rows:
        size, count = sums.get((row.category, row.tier), (0, 0))
        known = None not in (count, row.count)
        sums[row.category, row.tier] = (size + row.bytes,
                                        count + row.count if known else None)
    return [Holder(category, category, size, count, tier)
            for (category, tier), (size, count) in sums.items()]


def _by_tensor(rows, device):
    """Named tensors first; what they do not explain stays with its owner."""
    left = {(row.name, row.category, row.tier): row for row in rows}
    named = []
    for owner, name, category, size, tier in _tensors(device):
        key = (owner, category, tier)
        row = left.get(key)
        # What lies on two tiers, or in a block with others, has no row.
        if row is None or row.bytes < size:
            continue
        named.append(Holder(f"{owner}.{name}", category, size, 1, tier))
        rest = row.bytes - size
        if rest:
            left[key] = Holder(row.name, category, rest,
                               row.count - 1 if row.count else None, tier)
        else:
            del left[key]
    return named + list(left.values())


def _tensors(device):
    """(owner, name, category, bytes, tier) of each storage on the device."""
    # torch, that recordings lack
    from stratalloc._ownership import modules as _modules
    # torch, that recordings lack
    from stratalloc._native import storages as _storages

    seen = set()
    for owner, name, category, tensor in _modules.named_tensors():
        try:
            if _modules.annotated(tensor):
                continue  # its owner has no bytes of it
            storages = _storages.of(tensor)
        except (TypeError, RuntimeError):
            continue  # it has no memory, or nobody can tell where
        for index, address, size in storages:
            if index != device or not size or address in seen:
                continue
            seen.add(address)
            tiers = _core.residency(address, size)
            if size in tiers:  # whole on one tier
                yield (owner, name, _stack.CATEGORIES[category], size,
                       TIERS[tiers.index(size)])
