# SPDX-License-Identifier: Apache-2.0
"""mark() and diff(): who holds more, or less, than before."""

import dataclasses
import html
from collections.abc import Mapping

from stratalloc import _core
from stratalloc import _reports
from stratalloc.settings import format_size

_SHOWN = 20  # rows, for people


@dataclasses.dataclass(frozen=True)
class Mark:
    """What everybody held at one moment, on all tiers together.

    `held` has (owner, category) -> (bytes, blocks). A mark keeps no tensor.
    """

    name: str
    device: int
    total: int
    held: dict

    def __repr__(self):
        return (f"<stratalloc.Mark {self.name!r} of device {self.device}: "
                f"{self.total} bytes of {len(self.held)} owners>")


@dataclasses.dataclass(frozen=True)
class Change:
    """`bytes` and `count` (of blocks) more than before; negative: less."""

    name: str
    category: str
    bytes: int
    count: int
    tier: str = "all"


class Growth(Mapping):
    """What changed between two marks; rows add up to `total`.

    Attributes:
      total: int, bytes. at: "a to b", the marks' names. device: int.
      rows: list of Change, the largest growth first; none of 0.

    Also a mapping with the keys of to_dict().
    """

    def __init__(self, at, device, rows):
        self.at, self.device = at, device
        self.rows = sorted(rows, key=lambda row: (-row.bytes, row.name,
                                                  row.category))
        self.total = sum(row.bytes for row in self.rows)

    def to_dict(self):
        """{"total", "at", "device", "rows": [{"name", "category", ...}]}."""
        return {"total": self.total, "at": self.at, "device": self.device,
                "rows": [dataclasses.asdict(row) for row in self.rows]}

    def to_pandas(self):
        """A DataFrame with a line for each row."""
        import pandas

        return pandas.DataFrame(
            [dataclasses.asdict(row) for row in self.rows],
            columns=[field.name for field in dataclasses.fields(Change)])

    def text(self, all=False):  # noqa: A002 - as the option reads
        """A line per row, the largest changes first, all of them if `all`."""
        lines = [f"{_signed(self.total)} from {self.at} on device "
                 f"{self.device}"]
        rows = sorted(self.rows, key=lambda row: -abs(row.bytes))
        shown = rows if all else rows[:_SHOWN]
        lines += [f"{_signed(row.bytes):>12} in {row.count:+d} blocks  "
                  f"{row.name} ({row.category})" for row in shown]
        if len(shown) < len(rows):
            lines.append(f"and {len(rows) - len(shown)} smaller changes; "
                         "text(all=True) has them")
        return "\n".join(lines)

    def __str__(self):
        return self.text()

    def __rich__(self):
        from rich.text import Text

        return Text(self.text(), no_wrap=True)

    def _repr_html_(self):
        return f"<pre>{html.escape(self.text(all=True))}</pre>"

    def __repr__(self):
        return (f"<stratalloc.Growth {self.at} of device {self.device}: "
                f"{self.total:+d} bytes in {len(self.rows)} rows>")

    def __getitem__(self, key):
        return self.to_dict()[key]

    def __iter__(self):
        return iter(("total", "at", "device", "rows"))

    def __len__(self):
        return 4


def _signed(size):
    return ("-" if size < 0 else "+") + format_size(abs(size))


def mark(name=None, device=None):
    """What everybody holds now, for diff().

    Args:
      name: text for people; None: "mark 1", "mark 2" and so on.
      device: as torch takes it; None: the current one.

    Returns: Mark; of nothing before CUDA is initialised.

    Raises:
      RuntimeError: the device does not exist.
    """
    if name is None:
        _count[0] += 1
        name = f"mark {_count[0]}"
    values = _reports.report(device)
    if not values:
        return Mark(str(name), 0, 0, {})
    held = {}
    for row in values["layers"]:
        if row["live"]:
            held[row["owner"], row["category"]] = (row["live"], row["blocks"])
    return Mark(str(name), values["device"],
                sum(size for size, _ in held.values()), held)


_count = [0]


def diff(a, b=None):
    """What changed from mark `a` to mark `b`.

    Args:
      a: Mark. b: Mark of the same device; None: now.

    Returns: Growth; rows add up to b.total - a.total. What moved to another
    tier has not changed.

    Raises:
      TypeError: a or b is no Mark.
      ValueError: they are of different devices.
    """
    for each in (a,) if b is None else (a, b):
        if not isinstance(each, Mark):
            raise TypeError(f"stratalloc.diff: {each!r} is no mark; use what "
                            "stratalloc.mark() returns")
    if b is None:
        b = mark("now", a.device if _core.initialized() else None)
    if a.device != b.device and a.held and b.held:
        raise ValueError(f"stratalloc.diff: {a.name!r} is of device {a.device} "
                         f"and {b.name!r} of device {b.device}; mark the same "
                         "device twice")
    rows = []
    for key in {**a.held, **b.held}:
        before, after = a.held.get(key, (0, 0)), b.held.get(key, (0, 0))
        if before != after:
            rows.append(Change(*key, after[0] - before[0],
                               after[1] - before[1]))
    return Growth(f"{a.name} to {b.name}", b.device, rows)
