# SPDX-License-Identifier: Apache-2.0
"""Base classes of results: attributes, a mapping, and a page for people.

A result says what it has (to_dict) and how it reads (_page); everything else
is here: `result["key"]`, `dict(result)`, print(result), rich.print(result), a
notebook's cell, to_pandas(). Bytes and counts are ints, never text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stratalloc._rendering.page import Page

if TYPE_CHECKING:
    import pandas


class Shown:
    """What has a page: printed, by rich, in a terminal of IPython, as HTML."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Where IPython looks, a class's own __repr__, or being a dict, comes
        # before what a base class has.
        cls._repr_pretty_ = cls._repr_pretty_

    def _page(self, depth=None, all=False) -> Page:  # noqa: A002
        raise NotImplementedError

    def text(self, depth: int | None = None,
             all: bool = False) -> str:  # noqa: A002 - as the option reads
        """Text for people. A tree in it is as long as the terminal is high.

        Args:
          depth: levels of a tree below its total, with all of their lines.
          all: all lines of trees and tables.

        Raises:
          ValueError: depth is no int, or below 0.
        """
        return self._page(depth, all).text()

    def __str__(self) -> str:
        return self._page().text()

    def __rich_console__(self, console, options):
        yield self._page()

    def _repr_html_(self):
        return self._page(all=True).html()

    def _repr_pretty_(self, printer, cycle):
        # IPython asks for this; what is inside of a list has one line there.
        inside = cycle or len(printer.stack) > 1
        printer.text(repr(self) if inside else str(self))


class Answer(Shown):
    """Has a page and values. No mapping: what runs stays true and hashable."""

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict of dicts, lists, ints and texts, for JSON."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a line for each value of to_dict(): its `name`,
        as "allocated.peak", and its `value`.

        Raises:
          ImportError: pandas is not installed.
        """
        return frame(("name", "value"), [
            {"name": name, "value": value}
            for name, value in _values("", self.to_dict())])


class Result(Answer, Mapping[str, Any]):
    """A mapping with the keys of to_dict()."""

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


class Rows(Result):
    """A result with `rows`, of the dataclass that `_row` is."""

    _row: ClassVar[type] = type(None)
    rows: Sequence[Any]
    total: int
    at: str
    device: int

    def to_dict(self) -> dict[str, Any]:
        """{"total", "at", "device", "rows": [{"name", "category", "bytes",
        "count", "tier"}]}; bytes of the rows add up to total."""
        rows = self.rows
        return {"total": sum(row.bytes for row in rows), "at": self.at,
                "device": self.device, "rows": dicts(rows)}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a line for each row.

        Raises:
          ImportError: pandas is not installed.
        """
        return frame([field.name for field in dataclasses.fields(self._row)],
                     dicts(self.rows))


def _values(name, value):
    """(name, value) of what is neither a dict nor a list, at any depth."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        yield name, value
        return
    for key, part in parts:
        yield from _values(f"{name}.{key}" if name else str(key), part)


def dicts(rows):
    """Of dataclasses whose fields are ints and texts."""
    return [dict(vars(row)) for row in rows]


def frame(columns, rows):
    """A DataFrame of dicts, with these columns even if there are none."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"stratalloc: to_pandas() needs pandas, which cannot be imported "
            f"({error}); run `pip install pandas`, or use to_dict()") from None
    return pandas.DataFrame(rows, columns=list(columns))
