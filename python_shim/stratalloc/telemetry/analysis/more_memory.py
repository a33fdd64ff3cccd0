# SPDX-License-Identifier: Apache-2.0
"""saved(): how much less would move with more memory; an estimate.

The model of tiering (tiers_model.py) goes through the run twice, on what the
allocator had and on more, and only the share is told, since both are off in the
same way. Where the model and the recording differ too much, or where the run is
too long to be walked in about a second, nothing is told.
"""

import dataclasses

from stratalloc.telemetry import gaps
from stratalloc.telemetry.analysis.tiers_model import TiersModel
from stratalloc.telemetry.analysis.uses_model import uses

_EVENTS = 100_000  # of a run that is walked
_STEPS = 200_000  # of the model, each time
# As analysis.fit's README has it: of 60 cards the model said 0.23 to 1.15 of
# the bytes that left.
_LEAST, _MOST = .2, 2.
_WORTH = .25  # a share that is told
_MORE = (8, 4, 2, 1)  # the part of the memory that is added


@dataclasses.dataclass(frozen=True)
class Saved:
    """`more` bytes of memory would save `share` of what moves, from 0 to 1."""

    more: int
    share: float


def saved(run, walked, moved):
    """The least of a few sizes that saves a quarter or more, as Saved; None
    where none does, or where it cannot be told.

    Args:
      walked: the Replay of a device.
      moved: bytes that left it and came back.
    """
    had = walked.reserved.most()
    if not moved or len(run.events) > _EVENTS or not gaps.exact(
            run, walked.index, walked):
        return None
    found = uses(run, walked, _STEPS)
    if found is None:
        return None
    now = _moves(found, had)
    if now is None or not _LEAST * moved <= now <= _MOST * moved:
        return None
    for part in _MORE:
        then = _moves(found, had + had // part)
        if then is not None and now - then >= _WORTH * now:
            return Saved(had // part, (now - then) / now)
    return None


def _moves(found, capacity):
    """Bytes that the model moves, or None where it has no room."""
    tiers = TiersModel(capacity, "tiering")
    tiers.go(found)
    return None if tiers.refused else tiers.evicted + tiers.restored
