# SPDX-License-Identifier: Apache-2.0
"""OutOfMemoryReport: what on_oom() is given and a bundle's report.json has.

A mapping of plain values (to_dict()), which can be made again of its JSON; a
page for people is page.py's. Holds no tensor and nothing of the core.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stratalloc._oom import arithmetic, bundle, facts, page
from stratalloc._oom.redaction import Names
from stratalloc._oom.suggestions import Suggestion, find
from stratalloc._oom.trials import Trials
from stratalloc._oom.verdict import Verdict, judge
from stratalloc._recording import record as _record
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result, frame

if TYPE_CHECKING:
    import pandas

SCHEMA = 1


class OutOfMemoryReport(Result):
    """Why there was no memory, and what would help. Bytes are ints.

    Attributes:
      device: index of the device.
      requested: bytes that were asked for.
      rounded: bytes of the block; of an operator that was not run those of the
        handles that it needs at once.
      operator: name of an operator that was not run, else None.
      owner: the scope that the memory would have been charged to.
      category: that it would have been charged as.
      site: "file:line function" of user code; None if none ran on this thread
        (autograd's).
      verdict: the cause, a Verdict.
      suggestions: list of Suggestion, the first gives up least; each was tried
        on a copy of the blocks.
      arithmetic: {what: bytes}, whose sum is the card's capacity.
      facts: everything that was read.
      bundle: path of the folder that was written; None without one.
      is_redacted: names are numbers, and files are left out.

    Also a mapping with the keys of to_dict(); str() is report.md, in Markdown.
    """

    device: int
    requested: int
    rounded: int
    operator: str | None
    owner: str
    category: str
    site: str | None
    verdict: Verdict
    suggestions: list[Suggestion]
    arithmetic: dict[str, int]
    facts: dict[str, Any]
    bundle: str | None
    is_redacted: bool

    def __init__(self, known: dict[str, Any], verdict: Verdict,
                 suggestions: list[Suggestion],
                 folder: str | None = None) -> None:
        self.facts, self.verdict = known, verdict
        self.suggestions, self.bundle = suggestions, folder
        self.device, self.requested = known["device"], known["bytes"]
        self.rounded, self.operator = known["rounded"], known["operator"]
        self.owner, self.category = known["owner"], known["category"]
        self.site = known["site"]
        self.arithmetic = arithmetic.table(known)
        self.is_redacted = False
        self._trials = None

    @classmethod
    def of(cls, told: Any, site: str | None) -> OutOfMemoryReport:
        """Of a refusal that is going on (Refusal's pointer), at this line
        of user code or None: asks the core, and RuntimeError as it."""
        read = facts.read(told, site)
        return cls._found(read, Trials(told, read))

    @classmethod
    def _found(cls, known, trials):
        verdict = judge(known, trials)
        report = cls(known, verdict, find(known, trials, verdict))
        report._trials = trials
        return report

    def _redacted(self):
        """The same without names; while the refusal is going on."""
        report = self._found(Names().hidden(self.facts), self._trials)
        report.is_redacted = True
        return report

    def write(self, directory: str, number: int,
              limits: tuple[int, int]) -> str | None:
        """Makes a bundle (bundle.py) of it, and `bundle` its path; returns why
        not, or None. Where the program is recorded without names the bundle has
        none, either."""
        shown = self._redacted() if _record.is_redacted() else self
        try:
            self.bundle = bundle.write(directory, shown, number, limits)
        except bundle.NoBundleError as error:
            return str(error)
        return None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OutOfMemoryReport:
        """Of to_dict(), as JSON gives it back; ValueError, KeyError or
        TypeError if it is something else."""
        if values["schema"] != SCHEMA:
            raise ValueError(f"schema {values['schema']!r} is not {SCHEMA}, "
                             "which this version reads")
        suggestions = [
            Suggestion(**{**one, "blocks": tuple(one["blocks"])})
            for one in values["suggestions"]]
        return cls(values["facts"], Verdict(**values["verdict"]), suggestions,
                   values.get("bundle"))

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, ints and texts, for JSON."""
        return {"schema": SCHEMA, "device": self.device,
                "requested": self.requested, "rounded": self.rounded,
                "operator": self.operator, "owner": self.owner,
                "category": self.category, "site": self.site,
                "verdict": dataclasses.asdict(self.verdict),
                "suggestions": [
                    {**dataclasses.asdict(one), "blocks": list(one.blocks)}
                    for one in self.suggestions],
                "arithmetic": self.arithmetic,
                "bundle": (os.path.basename(self.bundle or "") or None
                           if self.is_redacted else self.bundle),
                "facts": self.facts}

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas.DataFrame with a line for each part of `arithmetic`.

        Raises:
          ImportError: pandas is not installed.
        """
        return frame(("name", "bytes"), [
            {"name": name, "bytes": size}
            for name, size in self.arithmetic.items()])

    def _page(self, depth=None, all=False):  # noqa: A002
        return Page(page.text(self).split("\n"), depth, all)

    def __repr__(self) -> str:
        return (f"<stratalloc.OutOfMemoryReport of {self.requested} bytes: "
                f"{self.verdict.kind}>")
