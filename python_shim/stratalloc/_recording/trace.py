# SPDX-License-Identifier: Apache-2.0
"""trace(), dump(), telemetry_level(): what happens in a program, as a file and
as a Run; and how much of it is recorded."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._native.argument_types import Path, TelemetryLevel
from stratalloc._native.started import Started
from stratalloc._recording import levels as _levels
from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Answer

if TYPE_CHECKING:
    from stratalloc.telemetry.model import Run

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Trace(Started, Answer):
    """One recording, from start() to close(), of a `with`, or of each call of a
    function that it decorates.

    Attributes:
      path: the file that is written when the recording ends; None: none is.

    Events are recorded while at least one is open, in rings that keep the last
    131072 of each thread; what was lost is counted (`run().dropped`).

    str() has the sums of each device, and in a notebook a picture of what it
    held over time.
    """

    path: str | None

    def __init__(self, path: Path | None = None, redact: bool = False) -> None:
        if path is not None:
            try:
                path = os.fspath(path)
            except TypeError:
                raise TypeError("stratalloc.trace: path must be a str or a "
                                f"path, not {type(path).__name__}") from None
            _exporter(path)
        self.path = None if path is None else os.path.abspath(path)
        self._redact = redact
        self._number = None
        self._run = self._told = None
        self._written = False  # the file at `path` is of this trace

    def start(self) -> Trace:
        """Begins to record; returns itself.

        Raises:
          NotEnabledError: before enable().
          RuntimeError: it is recording already, or `path` cannot be written.
        """
        if self._number is not None:
            raise RuntimeError(
                "stratalloc: this trace() is being recorded already; make "
                "another one with stratalloc.trace()")
        _state.require()
        if self.path is not None:
            _try(self.path)
        self._run, self._told, self._written = None, None, False
        self._number = self._begin()
        return self

    def _begin(self):
        return _core.begin_recording()

    def __enter__(self) -> Trace:
        return self.start()

    def close(self) -> None:
        """Ends the recording and writes it to `path`, where there is one.

        Raises:
          RuntimeError: it cannot be written.
        """
        if self._number is None:
            return
        number, self._number = self._number, None
        export = None if self.path is None else _exporter(self.path)
        if self.path is not None and export is None:
            _core.write_recording(number, self.path, about(), self._redact,
                                  over=True)
            self._written = True
            return
        # Here before it is written: what cannot be is not lost.
        self._run = _read(number, self._redact, over=True)
        if export is not None:
            export(self._run)

    def __call__(self, function: _Function) -> _Function:
        import functools

        @functools.wraps(function)
        def traced(*args, **kwargs):
            once = Trace(self.path, self._redact)
            try:
                with once:
                    return function(*args, **kwargs)
            finally:  # run() is that of the last call
                self._run, self._written = once._run, once._written
                self._told = None

        return traced  # type: ignore[return-value]

    def run(self) -> Run:
        """The Run so far, or of the whole recording once it has ended.

        Raises:
          RuntimeError: nothing was recorded.
        """
        if self._number is not None:
            return _read(self._number, self._redact, over=False)
        if self._run is None:
            if not self._written:
                raise RuntimeError(
                    "stratalloc: nothing was recorded; use `with "
                    "stratalloc.trace() as trace:`")
            from stratalloc.telemetry import recording

            self._run = recording.read(self.path)
        return self._run

    def to_dict(self) -> dict[str, Any]:
        """The sums of run(): {"recording", "devices", "scopes", "sites",
        "violations"}.

        Raises:
          RuntimeError: nothing was recorded.
        """
        return self._summary().to_dict()

    def _summary(self):
        from stratalloc.telemetry.analysis import summary

        if self._number is not None:
            return summary.summary(self.run())
        if self._told is None:
            self._told = summary.summary(self.run())
        return self._told

    def _page(self, depth=None, all=False):  # noqa: A002
        if self._number is not None:
            return Page(["this trace() is being recorded"], depth, all)
        if self._run is None and not self._written:
            return Page(["this trace() has recorded nothing yet: use `with "
                         "stratalloc.trace() as trace:`"], depth, all)
        try:
            return self._summary()._page(depth, all)
        except (OSError, ValueError) as error:  # the file is another now
            return Page([f"this trace() cannot be read: {error}"])

    def __repr__(self):
        if self._number is not None:
            return "<stratalloc.Trace, being recorded>"
        if self._run is not None:
            return (f"<stratalloc.Trace of {len(self._run.events)} events, "
                    f"{self._run.duration / 1e9:.3f} s>")
        return ("<stratalloc.Trace, written to a file>" if self._written
                else "<stratalloc.Trace of nothing>")


def trace(path: Path | None = None, redact: bool = False) -> Trace:
    """Records what happens to memory while it is open.

        with stratalloc.trace("step.strata"):
            step()

    Args:
      path: where it is written at its end, readable by its owner alone; its end
        says the format, as dump()'s. None: it is kept in memory, see
        Trace.run() (needs numpy, as every format but .strata).
      redact: bool, without names of scopes, files and the command.

    Returns: Trace: a context manager, a decorator, or start() and close().

    Raises:
      ValueError: no format ends as `path` does.
      NotEnabledError: when it begins, before enable().
      RuntimeError: it cannot be written; at the beginning, as far as can be
        told then.
    """
    return Trace(path, redact)


def _try(path):
    """RuntimeError where nothing can be written: before what is recorded."""
    from stratalloc._terminal.result_file import ResultFile

    try:
        ResultFile(path)
    except OSError as error:
        raise RuntimeError(
            f"stratalloc: {path} cannot be written: {error.strerror}; choose a "
            "place that can be written") from error


# How a file's name ends -> a name of telemetry.formats.
_BY_SUFFIX = {
    ".speedscope.json": "speedscope", ".trace.json": "chrome",
    ".pftrace": "perfetto", ".pickle": "snapshot", ".json": "snapshot-json",
    ".pprof": "pprof", ".pb.gz": "pprof", ".csv": "csv",
    ".parquet": "parquet"}


def _exporter(path):
    """What writes a Run to `path` in the format that its end says; None: that
    is a recording. ValueError: no format ends so."""
    ending = next((one for one in _BY_SUFFIX if path.endswith(one)), None)
    if ending is None:
        if path.endswith(".strata"):
            return None
        raise ValueError(
            f"stratalloc: {path!r} ends like no format; use .strata, "
            f"{', '.join(_BY_SUFFIX)}")

    def export(run):
        from stratalloc.telemetry import formats

        try:
            formats.write(_BY_SUFFIX[ending], run, path)
        except OSError as error:
            raise RuntimeError(
                f"stratalloc: {path} cannot be written: {error.strerror}; "
                "choose a place that can be written and has room") from error

    return export


def dump(path: Path, redact: bool = False) -> None:
    """Writes what happened since the telemetry level became `events` or above.

    Args:
      path: its end says the format: .strata (a recording, for the commands),
        .pickle or .json (torch's viewer), .speedscope.json, .trace.json or
        .pftrace (Perfetto), .pprof, .csv, .parquet.
      redact: bool, without names of scopes, files and the command.

    Raises:
      NotEnabledError: before enable().
      ValueError: no format ends so.
      RuntimeError: the level is below `events`, or the file cannot be written.
      MissingPackageError: the format needs a package that is not installed.
    """
    path = os.fspath(path)
    export = _exporter(path)
    _state.require()
    number = _core.flight_recording()
    if number == 0:
        raise RuntimeError(
            "stratalloc: no events are recorded; call "
            "stratalloc.telemetry_level(\"events\"), or "
            "stratalloc.enable(telemetry=\"events\"), before what you want to "
            "see")
    if export is None:
        _core.write_recording(number, path, about(), redact, over=False)
    else:
        export(_read(number, redact, over=False))


class PreviousLevel(str, Started):
    """The telemetry level before telemetry_level(level), as a str.

    close() or the end of its `with` switches back to it. If a later one is
    still open, the later level stays, and its close() switches back to here.
    """

    _closed = False
    _outer: PreviousLevel | None = None

    def _open(self) -> PreviousLevel:
        """Returns itself, the innermost from now on."""
        self._outer = next(iter(_open_levels()), None)
        _levels_begun[:] = [kept for kept in _levels_begun if kept() is not None]
        _levels_begun.append(weakref.ref(self))
        return self

    def close(self) -> None:
        """Switches back to the level that was before."""
        if self._closed:
            return
        innermost = next(iter(_open_levels())) is self
        self._closed = True
        if not innermost:
            return
        before = self
        while before._outer is not None and before._outer._closed:
            before = before._outer
        _switch(str(before))


# Weak: a caller that only sets a level keeps nothing that could be closed.
_levels_begun: list[weakref.ref[PreviousLevel]] = []


def _open_levels():
    """Those that a caller can still close, the innermost first."""
    for begun in reversed(_levels_begun):
        level = begun()
        if level is not None and not level._closed:
            yield level


@overload
def telemetry_level(level: None = None) -> TelemetryLevel: ...


@overload
def telemetry_level(
    level: TelemetryLevel | PreviousLevel) -> PreviousLevel: ...


def telemetry_level(
        level: TelemetryLevel | PreviousLevel | None = None) -> str:
    """The level of telemetry; switched to `level` first, if one is given.

    Args:
      level: "off", "counters", "events", "callsites" or "full": of every
        allocation the whole stack, which costs microseconds.

    Returns: the level, a str; where one is given PreviousLevel, the level that
      was before, which close() or the end of a `with` switches back to. Events
      recorded so far stay until they are overwritten. Bytes are counted at
      every level.

    Raises:
      ValueError: no level is called so.
      NotEnabledError: before enable().
      RuntimeError: this is a forked child.
    """
    _state.require()
    before = _levels.now()
    if level is None:
        return before
    _switch(level)
    return PreviousLevel(before)._open()


def _switch(level):
    if level not in _core.TELEMETRY_LEVELS:
        raise ValueError(
            f"stratalloc: there is no telemetry level {level!r}; use "
            f"{', '.join(_core.TELEMETRY_LEVELS)}")
    import torch

    level = str(level)  # not the PreviousLevel
    _levels.begin(torch, level)
    _bridge.lib().stratalloc_torch_note_telemetry()


def about():
    """What a recording says of its program."""
    found = {"command": sys.argv, "python": platform.python_version(),
             "stratalloc": _version(), "pid": os.getpid(),
             "level": _levels.recorded()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    config = _state.active
    if config is not None:
        found["settings"] = config.to_dict()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        if os.environ.get(name, "").isdecimal():
            found[name.lower()] = int(os.environ[name])
    return found


def _version():
    import stratalloc

    return stratalloc.__version__


def _read(number, redact, over):
    from stratalloc.telemetry import recording

    with tempfile.TemporaryDirectory(prefix="stratalloc-") as folder:
        path = os.path.join(folder, "trace")
        _core.write_recording(number, path, about(), redact, over)
        return recording.read(path)
