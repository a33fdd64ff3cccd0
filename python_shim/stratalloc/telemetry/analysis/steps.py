# SPDX-License-Identifier: Apache-2.0
"""Steps of a run: the moments that leaks() and the scalars compare.

Candidates, the most certain first (telemetry/README.md, "Which range is the
step"):

1. marks of stratalloc.mark(): those whose names differ in numbers alone are a
   family; a family that is called a step comes first;
2. ranges that contain a step of the optimizer: those called a step first, then
   the finest, then the outermost;
3. ranges that are called a step;
4. the optimizer's own ranges;
5. the scopes that a thread enters most often from outside of all others;
6. the longest ranges that are no module's.

Ranges are scopes of any thread: of record_function in torch's snapshots, of
modules, of optimizers and of stratalloc.scope() in recordings, but not those
that make or move parameters, and not nodes of backward. The first candidate
with LEAST steps is taken; where none has as many, the first one.
"""

import dataclasses
import itertools
import re

import numpy as np

from stratalloc._reports.leaks import LEAST
from stratalloc.telemetry import model
from stratalloc.telemetry.analysis import scope_ranges
from stratalloc.telemetry.model import Kind

_MADE = [model.CATEGORIES.index(name) for name in ("parameter", "buffer")]
_STATE = model.CATEGORIES.index("optimizer_state")
_INNER = model.BACKWARD | model.RECOMPUTES
_NUMBERS = re.compile(r"\d+")
# torch.optim names its ranges "Optimizer.step#SGD.step", and a recording's
# scope of an optimizer is "Optimizer.SGD".
_OPTIMIZER = re.compile(r"Optimizer\.(?!zero_grad#)")
# "train_step", "## step 12 ##", "ProfilerStep#12", "iter: loss": the last word,
# or the first that stands alone.
_WORD = r"(?:[Ss]teps?|STEP|[Ii]ter(?:ation)?s?|[Bb]atch)"
_CALLED = re.compile(
    rf"(?:^|[^A-Za-z]|(?<=[a-z])(?=[SIB])){_WORD}[^A-Za-z]*$"
    rf"|^[^A-Za-z]*{_WORD}(?=[^A-Za-z_.])")


@dataclasses.dataclass(frozen=True)
class Steps:
    """`moments`: events at which a step begins or ends; `what`: for people."""

    moments: list
    what: str


@dataclasses.dataclass(frozen=True)
class _Family:
    """Ranges whose names differ in numbers alone: events at which each begins
    and ends, in the order of `begin`."""

    name: str
    begin: np.ndarray
    end: np.ndarray

    def within(self, mask):
        return _Family(self.name, self.begin[mask], self.end[mask])

    @property
    def length(self):
        return int((self.end - self.begin).sum())


def of(run):
    """Steps of a run."""
    first = None
    for one in itertools.chain(_marks(run), _by_ranges(run)):
        first = first or one
        if len(one.moments) >= LEAST:
            return one
    return first or Steps([], "no steps are recorded")


def how(run):
    """What to add so that a run has steps: a sentence for people."""
    if run.source == "torch":
        return ("put each step into `with torch.profiler.record_function("
                "\"step\")` and record with _record_memory_history("
                "global_record_annotations=True)")
    return "call stratalloc.mark() at the end of each step"


def _leaf(name):
    """The last part of a path of stratalloc.scope()s."""
    return name.rpartition("/")[2]


def _is_step(name):
    """Whether a mark or a range is called a step; an optimizer's is not."""
    leaf = _leaf(name)
    return not leaf.startswith("Optimizer.") and bool(_CALLED.search(leaf))


def _family(name, count):
    """The name with N for its number, where that counts: in the name of a step,
    and in a name that occurs once. That of a layer does not."""
    counts = count == 1 or count < LEAST and _is_step(name)
    return _NUMBERS.sub("N", name) if counts else name


def _marks(run):
    at = np.flatnonzero(run.events["kind"] == Kind.MARK)
    if not len(at):
        return
    families = {}
    scopes, which, count = np.unique(run.events["scope"][at],
                                     return_inverse=True, return_counts=True)
    names = [_family(run.scopes[scope], times)
             for scope, times in zip(scopes.tolist(), count.tolist())]
    for moment, one in zip(at.tolist(), which.tolist()):
        families.setdefault(names[one], []).append(moment)
    if len(families) > 1:
        for name, moments in sorted(families.items(), key=lambda one: (
                not _is_step(one[0]), -len(one[1]))):
            if len(moments) >= LEAST:
                yield Steps(moments, f"from one mark {name} to the next")
    yield Steps(at.tolist(), "from mark to mark")


def _by_ranges(run):
    families, outer = _families(run)
    steps = [one for one in families if _OPTIMIZER.match(_leaf(one.name))]
    rest = [one for one in families
            if not _leaf(one.name).startswith("Optimizer.")]
    if steps:
        optimizer = max(steps, key=lambda one: len(one.begin))
        around = [_around(one, optimizer) for one in rest]
        for one in sorted((one for one in around if one is not None),
                          key=lambda one: (not _is_step(one.name),
                                           -len(one.begin), -one.length)):
            yield _from(one)
    for one in sorted((one for one in rest if _is_step(one.name)),
                      key=lambda one: -one.length):
        yield _from(one)
    if steps:
        yield _from(optimizer)
    yield from map(_from, sorted(outer, key=lambda one: -len(one.begin)))
    modules = {run.scopes[scope] for scope in run.classes
               if scope < len(run.scopes)}
    yield from map(_from, sorted(
        (one for one in rest if one.name not in modules),
        key=lambda one: -one.length))


def _from(family):
    return Steps(family.begin.tolist(),
                 f"from one {family.name} to the next")


def _around(family, optimizer):
    """The ranges that contain a step of the optimizer, or None where they
    contain less than half of its steps."""
    low = np.searchsorted(optimizer.begin, family.begin, "right")
    high = np.searchsorted(np.sort(optimizer.end), family.end, "left")
    inside = np.maximum(high - low, 0)
    if 2 * inside.sum() < len(optimizer.begin):
        return None
    return family.within(inside > 0)


def _families(run):
    """([_Family] of all ranges, [_Family] of the outermost of each thread),
    in the order of their first ranges."""
    found = scope_ranges.ranges(run)
    found = found[~np.isin(found["category"], _MADE)
                  & (found["flags"] & _INNER == 0)]
    optimizers = [scope for scope in np.unique(found["scope"]).tolist()
                  if _leaf(run.scopes[scope]).startswith("Optimizer.")]
    # An optimizer that is constructed makes state up to its end; one that steps
    # makes temporary memory when it ends.
    found = found[~((found["category"] == _STATE) & (found["left"] == _STATE)
                    & np.isin(found["scope"], optimizers))]
    return _by_family(run, found), _by_family(run, found[found["outer"]])


def _by_family(run, ranges):
    scopes, first, which, count = np.unique(
        ranges["scope"], return_index=True, return_inverse=True,
        return_counts=True)
    families = {}
    for i in np.argsort(first).tolist():
        name = _family(run.scopes[int(scopes[i])], int(count[i]))
        families.setdefault(name, []).append(i)
    order = np.argsort(which, kind="stable")
    places = np.split(order, np.cumsum(count)[:-1])
    found = []
    for name, several in families.items():
        mine = np.sort(np.concatenate([places[i] for i in several]))
        found.append(_Family(name, ranges["begin"][mine], ranges["end"][mine]))
    return found
