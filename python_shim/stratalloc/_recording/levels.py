# SPDX-License-Identifier: Apache-2.0
"""How much is recorded: off < counters < events < callsites < full, each with
what those before it record. Times of scopes; what happened, in rings (dump()
writes it); the lines of code that allocate, sampled by bytes; of every
allocation the whole stack.
"""

from stratalloc._native import core as _core
from stratalloc._ownership import sites as _sites

_now = ["counters"]


def now():
    return _now[0]


def events():
    """Are events recorded anyway?"""
    levels = _core.TELEMETRY_LEVELS
    return levels.index(_now[0]) >= levels.index("events")


def recorded():
    """What recordings have: events at least, which they switch on."""
    levels = _core.TELEMETRY_LEVELS
    return levels[max(levels.index("events"), levels.index(_now[0]))]


def begin(torch, level):
    """The level from now on."""
    if level in _sites.LEVELS:
        _sites.install(torch)
    _core.set_telemetry(level)
    _now[0] = level
