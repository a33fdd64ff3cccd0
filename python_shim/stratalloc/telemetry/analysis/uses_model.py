# SPDX-License-Identifier: Apache-2.0
"""uses(): which blocks of a run may leave the device, and when each is used.

A recording does not tell what an operator reads. It tells whose code runs: a
scope that is entered, or for which something is allocated (in backward too),
uses what it owns but an optimizer's state; a step of an optimizer uses all gradients and what
belongs with them, and what it makes lists of temporaries from again, since its
operators go over whole lists.
"""

import dataclasses

from stratalloc.telemetry import model, replay
from stratalloc.telemetry.model import Kind

ALLOC, USE, WRITE, FREE = range(4)

_LEAVES = tuple(map(model.CATEGORIES.index, (
    "unknown", "parameter", "buffer", "gradient", "optimizer_state", "input")))
_PARAMETER, _GRADIENT, _STATE, _TEMPORARY = map(model.CATEGORIES.index, (
    "parameter", "gradient", "optimizer_state", "temporary"))
_REFUSED = -1  # no recorded address
_MOVED = model.EVICTED | model.RESTORED


@dataclasses.dataclass
class Used:
    """A block: `leaves` says whether it may."""

    size: int
    leaves: bool
    scope: int
    category: int


@dataclasses.dataclass
class Uses:
    """`steps`: (what, index of `blocks`, event), in the order of the run."""

    blocks: list
    steps: list


def uses(run, walked, most=None):
    """Uses of the device that is `walked`, a Replay; None where they are more
    than `most`."""
    device = walked.index
    walker = _Walker(run)
    for row in walked.rows[walked.live(replay.BEFORE, "done")]:
        walker.allocate(-1, int(row["address"]), int(row["size"]),
                        int(row["scope"]), int(row["category"]))
    events = run.events
    kinds = events["kind"]
    ours = (kinds == Kind.SCOPE_ENTER) | (
        ((kinds <= Kind.FREE_COMPLETED) | (kinds == Kind.FREED_AWAY)
         | (kinds == Kind.OOM) | (kinds == Kind.RELABEL))
        & (events["device"] == device))
    columns = events[ours]
    for event, kind, flags, address, size, scope, category in zip(
            ours.nonzero()[0].tolist(), *(columns[name].tolist() for name in (
                "kind", "flags", "address", "bytes", "scope", "category"))):
        if most is not None and len(walker.steps) > most:
            return None
        if kind == Kind.SCOPE_ENTER:
            walker.enter(event, scope)
        elif kind == Kind.RELABEL:
            walker.relabel(address, scope, category)
        elif kind == Kind.OOM:  # refused then, tried again here
            walker.allocate(event, _REFUSED, size, scope, _TEMPORARY)
            walker.free(event, _REFUSED)
        elif flags & _MOVED:
            continue
        elif kind == Kind.ALLOC:
            walker.allocate(event, address, -(-size // 512) * 512 or 512,
                            scope, category)
        elif kind in (Kind.FREE_COMPLETED, Kind.FREED_AWAY):
            walker.free(event, address)
    return Uses(walker.blocks, walker.steps)


class _Walker:
    def __init__(self, run):
        self.blocks, self.steps = [], []
        self._steps_of = {i for i, name in enumerate(run.scopes)
                          if name.startswith("Optimizer.")}
        self._here = {}  # address -> index
        self._owned = {}  # scope -> {index of what may leave: None}
        self._gradients = 0  # how many there are
        self._list = 0  # temporaries of a step, since its last list

    def allocate(self, event, address, size, scope, category):
        self.free(event, address)  # its end was lost
        in_step = scope in self._steps_of
        one = Used(size, in_step or category in _LEAVES, scope, category)
        index = len(self.blocks)
        self.blocks.append(one)
        self._here[address] = index
        if scope and not in_step:
            self._use(event, scope)
        self.steps.append((ALLOC, index, event))
        if one.leaves:
            self._owned.setdefault(scope, {})[index] = None
        self._gradients += category == _GRADIENT
        self._list += in_step

    def free(self, event, address):
        index = self._here.get(address)
        if index is None:
            return
        one = self.blocks[index]
        if one.scope in self._steps_of:
            if 2 * self._list > self._gradients:
                self._use_lists(event, one.scope)
            self._list = max(0, self._list - 1)
        self._gradients -= one.category == _GRADIENT
        del self._here[address]
        self._owned.get(one.scope, {}).pop(index, None)
        self.steps.append((FREE, index, event))

    def relabel(self, address, scope, category):
        index = self._here.get(address)
        if index is None:
            return
        one = self.blocks[index]
        owned = self._owned.get(one.scope, {}).pop(index, 0) is None
        if one.scope in self._steps_of and scope not in self._steps_of:
            self._list = max(0, self._list - 1)
        self._gradients += (category == _GRADIENT) - (
            one.category == _GRADIENT)
        one.scope, one.category = scope, category
        if owned:
            self._owned.setdefault(scope, {})[index] = None

    def enter(self, event, scope):
        if scope in self._steps_of:
            self._list = 0
            self._sweep(event, _PARAMETER, _GRADIENT, _STATE)
        else:
            self._use(event, scope)

    def _use(self, event, scope):
        self.steps += [(USE, index, event)
                       for index in self._owned.get(scope, ())
                       if self.blocks[index].category != _STATE]

    def _use_lists(self, event, step):
        """The first ends of as many temporaries as a list has, one for nearly
        every gradient: they were made, and used."""
        self._list = 0
        for what in ((), (_PARAMETER, _STATE)):
            self._sweep(event, *what)
            self.steps += [(WRITE, index, event)
                           for index in self._owned.get(step, ())]

    def _sweep(self, event, *categories):
        """A step goes over what has gradients."""
        scopes = [scope for scope, owned in self._owned.items() if any(
            self.blocks[index].category == _GRADIENT for index in owned)]
        for category in categories:
            for scope in scopes:
                self.steps += [(WRITE, index, event)
                               for index in self._owned[scope]
                               if self.blocks[index].category == category]
