# SPDX-License-Identifier: Apache-2.0
"""Who hears of an out of memory: the bundle's directory, on_oom()'s callbacks.

The core calls _refused() on the thread that was refused, before the exception
is thrown (c_api/refusals.h); it is attached with the first of either
and costs nothing before that. Whatever goes wrong here is a line of the logger:
the exception stays the program's own.

A bundle is written once for each place (place.py), or owner where a thread of
PyTorch's own was refused, so a search for the largest batch writes one; later
refusals there name that bundle. Callbacks hear of every refusal, but not of those
inside of a callback. The exception has its cause from the core
(refusals/cause.h), with or without a bundle.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
import _thread

from stratalloc._native import core as _core
from stratalloc._native import declarations
from stratalloc._native.started import Started
from stratalloc._oom.place import Place
from stratalloc._ownership import sites as _sites

if TYPE_CHECKING:
    from stratalloc._oom.autopsy import OutOfMemoryReport

_log = logging.getLogger("stratalloc")
_inside = threading.local()


class _State:
    """What of the process; a fork begins with a lock of its own."""

    def __init__(self):
        self.lock = threading.Lock()  # one at a time
        self.callbacks = []
        self.directory = None
        self.limits = (0, 0, 0)  # dumps, bytes, seconds
        self.sites = {}  # key -> path of its bundle, None for none
        self.dumps = 0
        self.libraries = None
        self.attached = False


_state = _State()


def _after_fork():
    _state.lock = threading.Lock()
    _state.dumps = 0


os.register_at_fork(after_in_child=_after_fork)


def use(config):
    """The directory and bounds of a resolved Config, from now on."""
    _state.directory = (os.path.abspath(config.oom_dir) if config.oom_dir
                        else None)
    _state.limits = (config.oom_max_dumps, config.oom_max_bytes,
                     config.oom_max_seconds)
    _attach_or_not()


class OomCallback(Started):
    """A callback that on_oom() calls until close() or the end of its `with`."""

    def __init__(self, callback: Callable[[OutOfMemoryReport], object]) -> None:
        self._entry = [callback]  # the same function may be given twice
        _state.callbacks.append(self._entry)
        _attach_or_not()

    def close(self) -> None:
        """Ends the calls."""
        _state.callbacks[:] = [one for one in _state.callbacks
                               if one is not self._entry]
        _attach_or_not()

    def __call__(self) -> None:
        """Earlier spelling of close()."""
        self.close()


def on_oom(callback: Callable[[OutOfMemoryReport], object]) -> OomCallback:
    """Calls `callback` with a report whenever memory is refused.

        stratalloc.on_oom(lambda report: print(report.verdict.sentence))

    On the thread that was refused, before torch.OutOfMemoryError is raised, and
    also of what the program catches itself. An exception of the callback is
    logged; one that is out of memory itself is told of to nobody. It may free
    memory, but the request is not made again.

    Args:
      callback: called with one OutOfMemoryReport: `verdict` (kind, sentence,
        bytes), `suggestions`, `arithmetic`, `facts`, `bundle` (the folder that
        was written, where the setting oom_dir names a directory; else None).

    Returns: OomCallback, in effect until its close() or the end of its `with`.

    Raises:
      TypeError: it cannot be called.
    """
    if not callable(callback):
        raise TypeError(f"stratalloc.on_oom: {callback!r} cannot be called; "
                        "give a function of one argument, the report")
    return OomCallback(callback)


def _attach_or_not():
    wanted = bool(_state.directory or _state.callbacks)
    if wanted == _state.attached:
        return
    if wanted:
        _report_class()  # now, and not when there is no memory
    _core.hear_refusals(_LISTENER if wanted else None)
    _state.attached = wanted


def _detach():
    """Before the interpreter is finalised, when nobody can have the GIL."""
    if _state.attached:
        _core.hear_refusals(None)
        _state.attached = False


atexit.register(_detach)


def _refused(told, line, room):
    """The core's listener: how many bytes of `line` it wrote."""
    try:
        data = _fitting(_said(told), room)
        ctypes.memmove(line, data, len(data))
        return len(data)
    except KeyboardInterrupt:
        _thread.interrupt_main()  # the program's, when it is back
    except BaseException:  # pylint: disable=broad-exception-caught
        _log.exception("stratalloc: the report of an out of memory failed")
    return 0


_LISTENER = declarations.REFUSAL_LISTENER(_refused)


def _fitting(where, room):
    """As UTF-8 in `room` bytes; nothing of a path that is longer."""
    data = where.encode("utf-8", "backslashreplace")
    return data if len(data) <= room else b""


def _said(told):
    """Where the bundle is: what the exception says behind its message."""
    if getattr(_inside, "now", False):
        return ""
    _inside.now = True
    try:
        return _hear(told)
    finally:
        _inside.now = False


def _hear(told):
    place = Place(_libraries())
    with _Turn() as turn:
        if not turn:
            _log.warning("stratalloc: an out of memory has no report: another "
                         "thread's took too long")
            return ""
        key = _key(told, place)
        writes = _may_write(key)
        if not writes and not _state.callbacks:
            return _earlier(told, key)
        report = _report_class().of(told, place.line)
        if writes:
            _write(report, key)
    for (callback,) in list(_state.callbacks):
        try:
            callback(report)
        except Exception:  # pylint: disable=broad-exception-caught
            _log.exception("stratalloc: a callback of on_oom() failed")
    if not report.bundle:
        return ""
    return f"{_joint(told)}stratalloc wrote {report.bundle}."


def _report_class():
    # Not by its module, which needs what enable() knows, which needs this one.
    import stratalloc

    return stratalloc.OutOfMemoryReport


class _Turn:
    """The lock, waited for as long as one bundle may take; false without it."""

    def __enter__(self):
        self._has = _state.lock.acquire(timeout=_state.limits[2] + 5)
        return self._has

    def __exit__(self, *what):
        if self._has:
            _state.lock.release()


def _libraries():
    if _state.libraries is None:
        import torch

        _state.libraries = tuple(each + os.sep
                                 for each in _sites.libraries(torch))
    return _state.libraries


def _key(told, place):
    refusal = told.contents
    return (place.path, refusal.device) if place.path else (
        refusal.scope, refusal.name, refusal.device)


def _may_write(key):
    if _state.directory is None or key in _state.sites:
        return False
    return _state.dumps < _state.limits[0]


def _write(report, key):
    _state.sites[key] = None  # what fails now would fail again
    why = report.write(_state.directory, _state.dumps, _state.limits[1:])
    _state.sites[key] = report.bundle
    if why is None:
        _state.dumps += 1
    else:
        _log.warning("stratalloc: an out of memory has no bundle: %s", why)


def _earlier(told, key):
    path = _state.sites.get(key)
    if path is None:
        return ""
    return (f"{_joint(told)}stratalloc wrote about an earlier one of the same "
            f"place: {path}.")


def _joint(told):
    message = told.contents.message or b""
    return " " if message.endswith(b".") else ". "
