# SPDX-License-Identifier: Apache-2.0
"""What each level of telemetry takes of a malloc and its free, against `off`.

A pair is three events: a block is handed out, given up, and free. One event
alone is measured of scopes, which do nothing else for `events`. Lines and
stacks are those of a program of the user's that calls the pairs, which are in
C++: on the stack are so many frames, the innermost three of them ours.

The first half runs in the worker, lines() asks it.
"""

import ctypes
import sys

from stratalloc.bench import library

SIZES = ((512, "512 B"), (64 << 10, "64 KiB"))
# (level, frames on the stack)
LEVELS = (("counters", 16), ("events", 16), ("callsites", 16), ("full", 16),
          ("full", 40))
GROUP = "levels of telemetry"
EVENT_GOAL = 25.0
_RUNS = 5  # of which the fastest counts
_PAIRS = 5000
_SCOPES = 200000
_PROGRAM = """
def below(depth, work):
    return below(depth - 1, work) if depth else work()
"""


def measure(torch, level, size, frames):
    """A round: nanoseconds of a pair at the level, and right after at off."""
    del torch
    import stratalloc

    below = _program()
    taken = ctypes.c_double()
    depth = frames - below(0, _frames) - _MORE

    def pairs():
        library.call("pairs", 0, size, _PAIRS, 1, ctypes.byref(taken))
        return taken.value / _PAIRS

    def at(one):
        stratalloc.telemetry_level(one)
        below(depth, pairs)  # what is first seen is interned
        return min(below(depth, pairs) for _ in range(_RUNS))

    try:
        return {"ours": at(level), "off": at("off")}
    finally:
        stratalloc.telemetry_level("counters")


def measure_event(torch):
    """A round: nanoseconds of one event, of those of entering and leaving."""
    del torch
    import stratalloc

    def at(one):
        stratalloc.telemetry_level(one)
        return min(library.scopes_ns(_SCOPES) for _ in range(_RUNS))

    try:
        return {"ours": (at("events") - at("counters")) / 2}
    finally:
        stratalloc.telemetry_level("counters")


_MORE = 5  # at(), its generator, pairs(), call() and what that calls


def _frames():
    """How many call the caller, itself among them."""
    frame, count = sys._getframe(1), 0  # pylint: disable=protected-access
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def _program():
    """A function of nobody's library."""
    names = {}
    exec(compile(_PROGRAM, "/program.py", "exec"), names)  # pylint: disable=exec-used
    return names["below"]


def lines(worker, entry, rounds):
    def asked(what, **values):
        return [worker.ask(what, **values) for _ in range(rounds)]

    yield entry("one event", [one["ours"] for one in asked("level_event")],
                goal=EVENT_GOAL)
    for size, name in SIZES:
        for level, frames in LEVELS:
            answers = asked("level", level=level, size=size, frames=frames)
            deep = f", {frames} frames" if level == "full" else ""
            row = entry(f"malloc/free {name}, {level}{deep}",
                        [one["ours"] for one in answers],
                        [one["off"] for one in answers], "off")
            row["difference"] = row["value"] - row["baseline"]
            yield row
