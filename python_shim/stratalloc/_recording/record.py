# SPDX-License-Identifier: Apache-2.0
"""`run --record FILE`: the recording of a whole program, and of its children.

While the program runs its events are in FILE.running, which outlives a SIGKILL:
`stratalloc recover FILE.running -o FILE` makes a recording of that. When the
program ends, be it by an exception, FILE is written and FILE.running goes.

Processes that it starts come in by the entry point (_autoload.py) and find FILE
in the environment. Each records to FILE.rankN, if its launcher gave it a RANK,
else to FILE.PID, in the same way, from its first use of CUDA on: one that never
uses it leaves nothing. Nor does a fork of a process that records, which shares
its file.
"""

import atexit
import contextlib
import dataclasses
import json
import os
import re
import sys
import time

from stratalloc._native import core as _core
from stratalloc._terminal import command as _command
from stratalloc._terminal import pipes as _pipes
from stratalloc.settings import Config

_ENDING = ".strata"
_SUFFIX = ".running"
# What children are told: {"file", "redact", "since"}; a file of theirs that is
# younger than `since`, ns, is of this run.
_VARIABLE = "STRATALLOC_RECORD"


class Recording:
    """Begins when it is made. Raises UsageError if FILE cannot be written."""

    def __init__(self, path, redact):
        self._path = os.path.abspath(path)  # the program may change its folder
        self.written = None  # FILE, once it is whole
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            what = "a directory" if os.path.isdir(self._path) else (
                "no regular file, and would be one afterwards")
            raise _command.UsageError(f"--record {path}: it is {what}; give "
                                      "the name of a file")
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise _command.UsageError(
                f"--record {path}: there is no folder {folder}; make it first, "
                "or give a file elsewhere")
        if not self._path.endswith(_ENDING):
            raise _command.UsageError(
                f"--record {path}: a recording ends in {_ENDING}; give "
                f"{path}{_ENDING}, of which `stratalloc convert` makes other "
                "formats")
        self._refuse_what_is_left(path)
        self._since = time.time_ns()
        try:
            self._file = _File(self._path, redact)
        except (ValueError, RuntimeError) as error:
            raise _command.UsageError(f"--record {path}: {error}") from None
        os.environ[_VARIABLE] = json.dumps(
            {"file": self._path, "redact": redact, "since": self._since})

    def _refuse_what_is_left(self, path):
        """UsageError where a file of rings is in the way: the program's own or
        a rank's, whose name is wanted again, or that of a child that lives.
        A dead one's is in nobody's way, and is told on stderr."""
        dead = []
        for one in (self._path + _SUFFIX, *_of_children(self._path)):
            if not one.endswith(_SUFFIX) or not os.path.exists(one):
                continue
            pid = _pid(self._path, one)
            if pid is not None and not _lives(pid):
                dead.append(one)
                continue
            raise _command.UsageError(
                f"--record {path}: {one} is there, from a program that still "
                f"runs or was killed; `stratalloc recover {one} -o OTHER` "
                "saves what it has, then remove it")
        if dead:
            _pipes.note(f"stratalloc: --record: {', '.join(dead)} is of a "
                        "child of an earlier run that was killed: `stratalloc "
                        "recover` reads it")

    def discard(self):
        """Leaves no file of this process, whose memory was not recorded."""
        if self._file.mine():
            self._file.discard()
            self._tell_of_children()

    def end(self):
        """False if the file could not be written; stderr says why then, and
        which files there are of children."""
        if not self._file.mine():
            return True  # a fork that ends as its parent would
        written = self._file.end()
        self.written = self._path if written else None
        self._tell_of_children()
        return written

    def _tell_of_children(self):
        found = [one for one in _of_children(self._path)
                 if _is_of(one, self._since)]
        whole = [one for one in found if not one.endswith(_SUFFIX)]
        left = [one for one in found if one.endswith(_SUFFIX)]
        said = []
        if whole:
            said.append("children recorded " + ", ".join(whole))
        if left:
            said.append(", ".join(left) + " is of a child that was killed or "
                        "still runs: `stratalloc recover` reads it")
        if said:
            _pipes.note(f"stratalloc: --record: {'; '.join(said)}")


_files = []


def number():
    """The core's number of the recording that this process writes; 0: none."""
    return max((file.number() for file in _files), default=0)


def is_redacted():
    """Is this program, or the one that it is a child of, recorded without
    names? What else is written about it has none then."""
    if any(file.redacted for file in _files):
        return True
    try:
        return bool(json.loads(os.environ.get(_VARIABLE, "{}"))["redact"])
    except (ValueError, KeyError, TypeError):
        return False  # the program's own variable, or none


class _File:
    """A recording that this process writes."""

    def __init__(self, path, redact):
        self._path, self.redacted = path, redact
        self._pid = os.getpid()
        self._number = _core.begin_recording(path + _SUFFIX,
                                             redacted=redact)

        _files.append(self)

    def mine(self):
        return os.getpid() == self._pid

    def number(self):
        """Of the recording, while it goes on; 0 else."""
        return self._number or 0 if self.mine() else 0

    def discard(self):
        """The rings go with the process; the file that they lie in, now."""
        if self._number is None or not self.mine():
            return
        self._number = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path + _SUFFIX)

    def end(self):
        """Once; False if it could not be written, and stderr says why."""
        from stratalloc._recording import trace as _trace

        if self._number is None or not self.mine():
            return True
        number, self._number = self._number, None
        running = self._path + _SUFFIX
        try:
            _core.write_recording(number, self._path, _trace.about(),
                                  self.redacted, over=True)
        except (ValueError, RuntimeError) as error:
            _pipes.note(f"stratalloc: --record: {error}; what was recorded is "
                        f"in {running}: `stratalloc recover {running} -o "
                        "FILE`")
            return False
        with contextlib.suppress(FileNotFoundError):  # the program's doing
            os.unlink(running)
        return True


def inherited(config):
    """What enable() is to be given in place of `config`, None for the
    environment's.

    In a child of a program that is recorded: from its first use of CUDA on it
    is, too. A level that records waits for that, since where the rings lie is
    said once.
    """
    import torch

    said = os.environ.get(_VARIABLE)
    if not said or _children or torch.cuda.is_initialized():
        return config
    config = config or Config.from_env()
    level = config.telemetry
    recording = _OfAChild(said)
    _children.append(recording)  # an entry point may be called again
    # A program that records earlier, of its own accord, finds the rings there.
    _core.before_rings = recording.begin
    torch.cuda._lazy_call(  # pylint: disable=protected-access
        lambda: recording.begin_at_first_use(level))
    if level in ("off", "counters"):
        return config
    return dataclasses.replace(config, telemetry="counters")


_children = []  # this one, if it is


class _OfAChild:
    """What a child was told of the recording that it is part of."""

    def __init__(self, said):
        self._said = said
        self._begun = False

    def begin_at_first_use(self, level):
        from stratalloc._native import state as _state
        from stratalloc._recording import trace as _trace

        if not _state.is_enabled():
            return
        self.begin()
        if _trace.telemetry_level() == "counters" != level:
            _trace.telemetry_level(level)

    def begin(self):
        """Once. What keeps a child from recording is a line on stderr, not its
        end."""
        if self._begun:
            return
        self._begun = True
        try:
            file = self._file()
        except Exception as error:  # pylint: disable=broad-except
            _pipes.note(f"stratalloc: --record: process {os.getpid()} is not "
                        f"recorded: {error}")
            return
        atexit.register(file.end)
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            # Those that were forked end without what atexit knows.
            from multiprocessing import util

            util.Finalize(None, file.end, exitpriority=-1)

    def _file(self):
        told = json.loads(self._said)
        path = _reserved(told["file"], told["since"])
        try:
            return _File(path, told["redact"])
        except (ValueError, RuntimeError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + _SUFFIX)
            raise


def _reserved(file, since):
    """A name that is nobody's in this run, and whose rings' file is there."""
    rank = os.environ.get("RANK", "")
    names = [f"{file}.{os.getpid()}"]
    if rank.isdecimal():
        # A worker that was started again, and what a worker starts, have the
        # same one.
        names = [f"{file}.rank{rank}", f"{file}.rank{rank}.{os.getpid()}"]
    for path in names:
        if _is_of(path, since):
            continue
        try:
            os.close(os.open(path + _SUFFIX,
                             os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        return path
    raise RuntimeError(f"{names[-1]} is there already")


# What _reserved() calls a child's file, behind FILE.
_CHILD = re.compile(r"\.(?:rank\d+|(?:rank\d+\.)?([1-9]\d*))(?:\.running)?")


def _of_children(path):
    folder, name = os.path.split(path)
    try:
        there = os.listdir(folder)
    except OSError:
        return []  # the program's doing
    return sorted(os.path.join(folder, one) for one in there
                  if one.startswith(name) and _CHILD.fullmatch(one, len(name)))


def _pid(path, child):
    """The process that a child's file is of; None where a rank is."""
    found = _CHILD.fullmatch(child, len(path))
    return int(found[1]) if found and found[1] else None


def _lives(pid):
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _is_of(path, since):
    """Was it written in the run that began then?"""
    try:
        return os.stat(path).st_mtime_ns >= since
    except OSError:
        return False
