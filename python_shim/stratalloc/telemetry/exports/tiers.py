# SPDX-License-Identifier: Apache-2.0
"""Tiers: what moved to the tiers below a device and is there, at any moment."""

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind


class Tiers:
    """Of one device of a run. What was there before the recording is not in
    it. Work is that of the moves, whatever is asked then."""

    def __init__(self, run, index):
        events = run.events
        self._moves = np.flatnonzero(((events["kind"] == Kind.MOVE)
                                      | (events["kind"] == Kind.DROPPED))
                                     & (events["device"] == index))
        moves = events[self._moves]
        source, to = np.divmod(moves["category"], len(model.TIERS))
        dropped = moves["kind"] == Kind.DROPPED
        source[dropped], to[dropped] = moves["category"][dropped], 0
        size = moves["bytes"].astype("<i8")
        self._there = {}  # name -> (its first move, bytes after each of all)
        for tier, name in enumerate(model.TIERS[1:], 1):
            touched = np.flatnonzero((source == tier) | (to == tier))
            if len(touched):
                self._there[name] = touched[0], np.cumsum(
                    np.where(to == tier, size, 0)
                    - np.where(source == tier, size, 0))

    def at(self, moment):
        """{"host": bytes, "disk": bytes} after an event, of tiers that something
        had come to or left by then."""
        last = int(np.searchsorted(self._moves, moment, "right")) - 1
        return {name: max(0, int(there[last]))
                for name, (first, there) in self._there.items()
                if first <= last}
