# SPDX-License-Identifier: Apache-2.0
"""mark() and diff(): who holds more, or less, than before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from stratalloc._native import core as _core
from stratalloc._native import older_spellings
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._ownership import sites as _sites
from stratalloc._rendering import table as _table
from stratalloc._rendering import tree as _tree
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Rows
from stratalloc._reports import reports as _reports
from stratalloc._reports.holders import Holder
from stratalloc.sizes import format_size


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Mark(Rows):
    """Memory by owner at one moment, on all tiers together; also a mapping.

    Attributes:
      name: of the mark.
      at: the same as `name`.
      device: index of the device.
      total: bytes.
      held: (owner, category) -> (bytes, blocks).
      sites: the same by lines of code, a moment later; None where they are not
        recorded.
      rows: list of Holder, the largest first, whose tier is "all".

    A mark keeps no tensor.
    """

    _row = Holder

    name: str
    device: int
    total: int
    held: dict[tuple[str, str], tuple[int, int]]
    sites: dict[tuple[str, str], tuple[int, int]] | None = None

    @property
    def at(self) -> str:  # type: ignore[override]
        return self.name

    @property
    def rows(self) -> list[Holder]:  # type: ignore[override]
        return sorted((Holder(*key, *held, "all")
                       for key, held in self.held.items()),
                      key=lambda row: (-row.bytes, _table.natural(row.name),
                                       row.category))

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        return Page([_tree.Tree(
            [(row.name, row.category, row.bytes, row.count)
             for row in self.rows],
            [_tree.Column("bytes"), _tree.Column("blocks", str, weighs=False)],
            f"device {self.device} at {self.name}")], depth, all, **how)

    def __repr__(self) -> str:
        return (f"<stratalloc.Mark {self.name!r} of device {self.device}: "
                f"{self.total} bytes of {len(self.held)} owners>")


@dataclasses.dataclass(frozen=True)
class Change:
    """What one owner and category gained between two marks; less is negative.

    Attributes:
      name: the owner; by line of code "file:line function".
      category: of the memory, as scope() has them.
      bytes: more than before.
      count: blocks more than before.
      tier: "all".
    """

    name: str
    category: str
    bytes: int
    count: int
    tier: str = "all"


class Growth(Rows):
    """What changed between two marks; rows add up to `total`.

    Attributes:
      total: bytes.
      at: "a to b", the marks' names.
      device: index of the device.
      rows: list of Change, the largest growth first; none of 0.

    Also a mapping with the keys of to_dict(). str() is a tree, the largest
    changes first, as Holders' is; by line of code a list.
    """

    _row = Change

    rows: list[Change]
    total: int

    def __init__(self, at: str, device: int, rows: Iterable[Change],
                 by: str = "owner") -> None:
        self.at, self.device = at, device
        self.rows = sorted(rows, key=lambda row: (
            -row.bytes, _table.natural(row.name), row.category))
        self.total = sum(row.bytes for row in self.rows)
        self._is_tree = by == "owner"

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        said = (f"{signed(self.total)} from {self.at} on device "
                f"{self.device}")
        if not self.rows:
            return Page([said + ": nothing changed"], depth, all, **how)
        columns = [_tree.Column("bytes", signed),
                   _tree.Column("blocks", "{:+d}".format, weighs=False)]
        return Page([said, _tree.Tree(
            [(row.name, row.category, row.bytes, row.count)
             for row in self.rows], columns, split=self._is_tree)], depth, all,
            **how)

    def __repr__(self):
        return (f"<stratalloc.Growth {self.at} of device {self.device}: "
                f"{self.total:+d} bytes in {len(self.rows)} rows>")


def signed(size):
    """"+2 MiB": what changed, for people."""
    return ("-" if size < 0 else "+") + format_size(abs(size))


def mark(name: str | None = None, device: Device = None) -> Mark:
    """What everybody holds now, for diff().

    Args:
      name: text for people; None: "mark 1", "mark 2" and so on.
      device: as torch takes it; None: the current one.

    Returns: Mark; of nothing before CUDA is initialised.

    Raises:
      NotEnabledError: before enable().
      ValueError: the device is none of this machine's CUDA devices.
    """
    _state.require()
    if name is None:
        _count[0] += 1
        name = f"mark {_count[0]}"
    _core.mark(str(name))
    values = _reports.held(device)
    if not values:
        return Mark(str(name), 0, 0, {}, {} if _sites.on() else None)
    held = by_owner(values["rows"])
    sites = _sites.look(values["device"])
    made = Mark(str(name), values["device"],
                sum(size for size, _ in held.values()), held,
                None if sites is None else by_owner(sites.rows))
    last[made.device] = made
    return made


_count = [0]
last = {}  # device -> its newest Mark


def by_owner(rows):
    """(owner, category) -> (bytes, blocks) of what lives, of report()'s rows."""
    held = {}
    for row in rows:
        if row["live"]:
            # A class may be called as another scope is, even as "(no scope)".
            key = (row["owner"], row["category"])
            size, blocks = held.get(key, (0, 0))
            held[key] = (size + row["live"], blocks + row["blocks"])
    return held


def diff(a: Mark, b: Mark | None = None,
         by: Literal["owner", "site", "module"] = "owner") -> Growth:
    """What changed from mark `a` to mark `b`.

    Args:
      a: Mark. b: Mark of the same device; None: now.
      by: "owner": a row per owner and category; "module" is its earlier
        spelling. "site": per line of user code and category, of the blocks that
        were sampled, and the rest as "(not sampled)"; one row that says so where
        sites were not recorded.

    Returns: Growth; rows add up to b.total - a.total, by site too unless others
    allocate while a mark is made. What moved to another tier has not changed.

    Raises:
      NotEnabledError: before enable().
      TypeError: a or b is no Mark.
      ValueError: they are of different devices, or by is none of these.
    """
    by = older_spellings.by(by)
    if by not in ("owner", "site"):
        raise ValueError(f"stratalloc.diff: by={by!r} does not exist; use "
                         "owner or site")
    for each in (a,) if b is None else (a, b):
        if not isinstance(each, Mark):
            raise TypeError(f"stratalloc.diff: {each!r} is no mark; use what "
                            "stratalloc.mark() returns")
    _state.require()
    if b is None:
        b = mark("now", a.device if _core.initialized() else None)
    if a.device != b.device and a.held and b.held:
        raise ValueError(f"stratalloc.diff: {a.name!r} is of device {a.device} "
                         f"and {b.name!r} of device {b.device}; mark the same "
                         "device twice")
    if by == "owner":
        rows = _changes(a.held, b.held)
    elif a.sites is None or b.sites is None:
        rows = _changes({_NOBODY: _sum(a.held)}, {_NOBODY: _sum(b.held)})
    else:
        rows = _changes(a.sites, b.sites)
    return Growth(f"{a.name} to {b.name}", b.device, rows, by)


_NOBODY = (_sites.NOT_RECORDED, "unknown")


def _sum(held):
    return tuple(map(sum, zip((0, 0), *held.values())))


def _changes(before, after):
    rows = []
    for key in {**before, **after}:
        was, now = before.get(key, (0, 0)), after.get(key, (0, 0))
        if was != now:
            rows.append(Change(*key, now[0] - was[0], now[1] - was[1]))
    return rows
