# SPDX-License-Identifier: Apache-2.0
"""leaks(): who holds more after each step, for ever."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import re
import threading
from typing import Literal

from stratalloc._native import state as _state
from stratalloc._native.argument_types import Device
from stratalloc._native.started import Started
from stratalloc._ownership import sites as _sites
from stratalloc._rendering import table as _table
from stratalloc._rendering import tree as _tree
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Rows
from stratalloc._reports import diff as _diff
from stratalloc.sizes import format_size

_LOG = logging.getLogger("stratalloc")
_WINDOWS = 4  # that have to grow, one after another
_SITES = 5  # that are told to people, the fastest
LEAST = 2 * (_WINDOWS + 2)  # steps; a third of them may warm up
MANY = "(many owners)"
# The number that tells a root module from others of its class.
_NUMBER = re.compile(r"^([^./]+)#\d+(?=[./]|$)")


@dataclasses.dataclass(frozen=True)
class Leak:
    """What one owner and category gained from step to step.

    Attributes:
      name: the owner; of `sites` a line of user code.
      category: of the memory, as scope() has them.
      bytes: gained from the first to the last of the quarters that leaks()
        compares, over half of the steps; less than in all of them.
      count: blocks gained between the same.
      per_step: bytes per step, on average, rounded down.
      tier: "all".
    """

    name: str
    category: str
    bytes: int
    count: int
    per_step: int
    tier: str = "all"


class Leaks(Rows, Started):
    """Steps that are watched, and what grows with them; also a mapping.

    Attributes:
      rows: list of Leak, the fastest first; of the steps seen so far.
      total: bytes that the rows have gained.
      at: "the last n steps".
      device: as leaks() was given it.
      seen: steps so far.
      steps: of those the last so many count.
      sites: list of Leak whose names are lines of user code: where what grows
        was allocated, as far as it was sampled; a text that says so where sites
        are not recorded.
    """

    _row = Leak

    steps: int
    seen: int

    def __init__(self, steps: int, device: Device, hooked: bool) -> None:
        self.steps, self.device = steps, device
        self.seen = 0
        self._marks = collections.deque(maxlen=steps)
        self._lock = threading.Lock()
        self._hook = _after_each_optimizer(self.step) if hooked else None

    def step(self) -> None:
        """A step is over. Optimizers say so themselves, unless told not to."""
        now = _diff.mark(f"step {self.seen}", self.device)
        with self._lock:
            self._marks.append(now)
            self.seen += 1

    def close(self) -> None:
        """Ends the watch of optimizers; the steps seen so far stay."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def stop(self) -> None:
        """Earlier spelling of close()."""
        self.close()

    @property
    def rows(self) -> list[Leak]:  # type: ignore[override]
        return growing([mark.held for mark in self._seen()])

    @property
    def sites(self) -> list[Leak] | str:
        held = [mark.sites for mark in self._seen()]
        if None in held or not _sites.on():
            return _sites.NOT_RECORDED
        return [row for row in growing(held, (_itself,))
                if row.name != _sites.NOT_SAMPLED]

    def _compared(self):
        """Steps from the first to the last of the quarters."""
        seen = len(self._seen())
        return (seen - seen // 3) // _WINDOWS * (_WINDOWS - 1)

    def _seen(self):
        with self._lock:
            return list(self._marks)

    @property
    def total(self) -> int:  # type: ignore[override]
        return sum(row.bytes for row in self.rows)

    @property
    def at(self) -> str:  # type: ignore[override]
        return f"the last {min(self.seen, self.steps)} steps"

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        if self.seen < LEAST:
            return Page([f"{self.seen} steps seen; from {LEAST} on it can be "
                         "told what grows"], depth, all, **how)
        rows = self.rows
        if not rows:
            return Page([f"nothing grows over {min(self.seen, self.steps)} "
                         "steps"], depth, all, **how)
        columns = [_tree.Column("per step"),
                   _tree.Column(f"in {self._compared()} steps", weighs=False),
                   _tree.Column("blocks", str, weighs=False)]
        tree = _tree.Tree(
            [(row.name, row.category, row.per_step, row.bytes, row.count)
             for row in rows], columns, self.at)
        sites = self.sites
        # Sentences: a table would cut a path where its line is.
        return Page([tree, *([] if isinstance(sites, str) else [
            f"allocated at {row.name} ({row.category}): "
            f"{format_size(row.bytes)} in {row.count} blocks"
            for row in sites[:_SITES]])], depth, all, **how)

    def __repr__(self):
        return f"<stratalloc.Leaks after {self.seen} steps>"

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __exit__(self, *_: object) -> None:
        self.close()
        if self:
            _LOG.warning("memory grows with every step:\n%s", self)


def leaks(steps: int = 20, device: Device = None,
          on: Literal["optimizer", "call"] = "optimizer") -> Leaks:
    """Watches steps, and tells who holds more after each of them.

        with stratalloc.leaks(steps=30) as found:
            train()
        print(found)

    Somebody leaks who has gained bytes in each quarter of the last two thirds
    of the steps, counting in each quarter the step with the least. What grows
    while it warms up, and a cache that is full by then, do not; a cache that
    fills during all of the steps does: watch more steps. Who does not grow may
    be one of many that come, as models that are kept in a list: "Net#n" stands
    for all roots of that class together, "(many owners)" for all that no other
    row has, whatever their category. Marks are taken after
    optimizer steps and at step(), and keep no tensor.

    Args:
      steps: how many are looked at, the last ones; 12 at least.
      device: as torch takes it; None: the current one of whoever steps.
      on: "optimizer": each torch.optim.Optimizer.step() is a step;
        "call": only step() is, as in a loop without an optimizer.

    Returns: Leaks, which watches until its close() or the end of its `with`.

    Raises:
      NotEnabledError: before enable().
      ValueError: steps or on is none of these.
    """
    if not isinstance(steps, int):
        raise ValueError(f"stratalloc.leaks: steps={steps!r} is no int; use "
                         f"{LEAST} or more")
    if steps < LEAST:
        raise ValueError(f"stratalloc.leaks: steps={steps!r} are too few to "
                         f"tell growth from a warm-up; use {LEAST} or more")
    if on not in ("optimizer", "call"):
        raise ValueError(f"stratalloc.leaks: on={on!r} does not exist; use "
                         "optimizer or call")
    _state.require()
    return Leaks(steps, device, on == "optimizer")


def _after_each_optimizer(step):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(lambda *_: step())


def _itself(owner, category):
    return owner, category


def _with_its_like(owner, category):
    """A model that is made anew in each step is another root in each."""
    return _of_its_like(owner), category


@functools.lru_cache(1 << 14)
def _of_its_like(owner):
    return _NUMBER.sub(r"\1#n", owner)


def _with_all(owner, category):
    return MANY, "unknown"


def growing(steps, groups=(_itself, _with_its_like, _with_all)):
    """[Leak]: whose least grows from quarter to quarter of what each held.

    groups: functions (owner, category) -> whom it is summed up with, the most
    precise first; what a row has found is not in the sums of later ones.
    """
    if len(steps) < LEAST:
        return []
    late = steps[len(steps) // 3:]
    size = len(late) // _WINDOWS
    late = late[len(late) - size * _WINDOWS:]
    rows = []
    for group in groups:
        sums = [_summed(held, group) for held in late]
        found = {}
        for key in sums[-1]:
            least = [min(held.get(key, (0, 0)) for held in sums[i:i + size])
                     for i in range(0, len(sums), size)]
            if all(one[0] < two[0] for one, two in zip(least, least[1:])):
                gained = [last - first
                          for first, last in zip(least[0], least[-1])]
                found[key] = Leak(*key, *gained,
                                  gained[0] // (size * (_WINDOWS - 1)))
        rows += found.values()
        late = [{key: value for key, value in held.items()
                 if group(*key) not in found} for held in late]
    return sorted(rows, key=lambda row: (-row.bytes, _table.natural(row.name),
                                         row.category))


def _summed(held, group):
    """{group: (bytes, blocks)}"""
    found = {}
    for key, (size, blocks) in held.items():
        sums = found.setdefault(group(*key), [0, 0])
        sums[0] += size
        sums[1] += blocks
    return {key: tuple(sums) for key, sums in found.items()}
