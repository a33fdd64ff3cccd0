# SPDX-License-Identifier: Apache-2.0
"""The end of a run in one line on stderr: what moved, who waited, the verdict.

`run` tells it where something moved or events were recorded, STRATALLOC=1 where
its level is `events` or above; at level `off` nobody does, nor does a forked
child. It comes after the program's threads and before anything is torn down,
however the program ends but by a signal, and changes no exit code.

What moved is counted at every level. The verdict is of the recording: of FILE,
or of the rings that the level keeps. It is left out, and the line says why,
where numpy is missing, events were lost, or there are more of them than are
read in a second.
"""

import atexit
import os
import sys
import tempfile
import time

from stratalloc._live import sample
from stratalloc._native import core as _core
from stratalloc._recording import levels as _levels
from stratalloc.sizes import format_size

# Read and judged in half a second, with what more memory would save likewise,
# which leaves as much for packages that are imported and a machine that is busy.
MOST_EVENTS = 100_000
MOST_ESTIMATED = 30_000
_BYTES = 48  # of one event in a recording

_began = None  # (pid, monotonic time) since when memory is ours
_OF_MOVES = ("disk_bound", "bus_bound", "moving")


def begin():
    """The allocator of this process is ours from here on."""
    global _began
    _began = (os.getpid(), time.monotonic())


def tell_at_exit():
    """Under STRATALLOC=1: at the end, if events are recorded then."""
    begin()
    atexit.register(lambda: tell(only_recorded=True))


def tell(recording=None, only_recorded=False):
    """Prints the line, if there is one. recording: a file that was written."""
    try:
        said = line(recording, only_recorded)
        if said is not None and sys.stderr is not None:
            # One write: the ranks of a job share stderr.
            sys.stderr.write(f"stratalloc: {said}\n")
    except Exception:  # pylint: disable=broad-except
        # A device that is lost, a stderr that is closed: the program has
        # ended, and how is not ours to say.
        pass


def line(recording=None, only_recorded=False):
    """The line without its beginning; None where nothing is to be told."""
    if _began is None or _began[0] != os.getpid() or _levels.now() == "off":
        return None
    moved = sample.moved()
    if moved is None:
        return None  # no CUDA here, or it is another allocator's
    flight = _core.flight_recording()
    if not flight and recording is None and (
            only_recorded or not any(moved.values())):
        return None
    found = None
    if flight or recording is not None:
        try:
            found = _verdict(flight, recording)
        except _NoVerdict as why:
            return f"{_counted(moved)}; no verdict: {why}"
    if found is None:
        return _counted(moved)
    if found.kind not in _OF_MOVES:
        return f"{_counted(moved)}; {found.line}"
    disk = [f"{format_size(moved[key])} {word} disk" for key, word in (
        ("to_disk", "to"), ("from_disk", "from")) if moved[key]]
    return "; ".join([found.line, *([" and ".join(disk)] if disk else [])])


def _counted(moved):
    """What is known without a recording."""
    seconds = time.monotonic() - _began[1]
    if not any(moved.values()):
        return f"nothing moved in {seconds:.3g} s"
    said = (f"{format_size(moved['out'])} left the device and "
            f"{format_size(moved['in'])} came back")
    if moved["to_disk"] or moved["from_disk"]:
        said += (f", {format_size(moved['to_disk'])} to disk and "
                 f"{format_size(moved['from_disk'])} from disk")
    # Summed over threads: it may be more than the time, and is no share of it.
    return said + (f"; threads waited {moved['stall_ns'] / 1e9:.3g} "
                   f"thread-seconds in {seconds:.3g} s")


class _NoVerdict(Exception):
    """Why, to stand behind "no verdict: "."""


def _verdict(flight, recording):
    try:
        from stratalloc.telemetry import recording as recordings
        from stratalloc.telemetry.analysis import verdict
    except ImportError as error:
        raise _NoVerdict(f"it needs numpy ({error})") from None
    try:
        if recording is not None:
            return _judged(recordings, verdict, recording)
        with tempfile.TemporaryDirectory(prefix="stratalloc-") as folder:
            path = os.path.join(folder, "end")
            _few(sample.recorded())
            _core.write_recording(flight, path, {}, False, over=False)
            return _judged(recordings, verdict, path)
    except _NoVerdict:
        raise
    except Exception as error:  # pylint: disable=broad-except
        raise _NoVerdict(str(error).removeprefix("stratalloc: ")) from None


def _judged(recordings, verdict, path):
    _few(os.path.getsize(path) // _BYTES)
    run = recordings.read(path)
    if run.dropped:
        raise _NoVerdict(f"{run.dropped} events were lost")
    return verdict.verdict(run, estimate=len(run.events) <= MOST_ESTIMATED)


def _few(events):
    if events > MOST_EVENTS:
        raise _NoVerdict(
            f"{events} events are more than are read at the end; `stratalloc "
            "report` reads all of a recording (--record FILE.strata)")
