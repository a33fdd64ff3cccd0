# SPDX-License-Identifier: Apache-2.0
"""A bundle: a folder that says why a program is out of memory.

write() makes it beside its name, as oom_….partial, and renames it when it is
whole: what has the name of a bundle is one. It is its owner's alone (0700,
files 0600), and within bounds: of time, looked at between files and by a child
that is ended; and of bytes, with those of all bundles in the directory. What is
left out stands in manifest.json with why. Of a program that is recorded with
--redact it has no names: what cannot be without is left out. Nothing that is in
the directory is removed or followed. Raises NoBundleError, with a reason, if
there is none; what was begun is gone then.
"""

import ctypes
import functools
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time

from stratalloc._native import core as _core
from stratalloc._recording import record as _record
from stratalloc._recording import trace as _trace

PREFIX, PARTIAL = "oom_", ".partial"
SCHEMA = 1
# What of the environment is told: names, no prefixes, since others may have
# secrets.
_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "RANK", "STRATALLOC", "STRATALLOC_CONF",
    "STRATALLOC_STRICT", "TORCHINDUCTOR_MAX_AUTOTUNE", "WORLD_SIZE")


# What _about() says that has files and names of the program.
_NAMED = ("command", "settings")
_REDACTED = "the program is recorded with --redact, and it has names"


class NoBundleError(Exception):
    """Why no bundle was written."""


class LeftOutError(Exception):
    """Why one file was not written."""


def write(directory, report, number, limits):
    """The path of the bundle.

    directory: an absolute path. report: OutOfMemoryReport, whose `bundle` is
    set. number: how many this process wrote before. limits: (bytes, seconds).
    """
    begun = time.monotonic()
    most, seconds = limits
    _refuse_symlink(directory)
    left = most - _held(directory)
    if left <= 0:
        raise NoBundleError(
            f"the bundles in {directory} have {most} bytes or more "
            "(oom_max_bytes): remove some")
    partial, name = _make(directory, number)
    try:
        whole = os.path.join(directory, name)
        report.bundle = whole
        files = _Files(partial, left, begun + seconds)
        _fill(files, report)
        files.finish(report, begun)
        os.rename(partial, whole)
        return whole
    except (OSError, LeftOutError) as error:
        report.bundle = None
        shutil.rmtree(partial, ignore_errors=True)
        raise NoBundleError(_why(error)) from error
    except BaseException:
        report.bundle = None
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _why(error):
    return (getattr(error, "strerror", None) or str(error)
            or type(error).__name__)


def _refuse_symlink(directory):
    """Where somebody else's link leads is not for us to fill."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise NoBundleError(f"{directory}: {_why(error)}") from error
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise NoBundleError(f"{directory} is a symbolic link of another user")


def _held(directory):
    """Bytes of the bundles that are there, whole or not."""
    held = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if (entry.name.startswith(PREFIX)
                        and entry.is_dir(follow_symlinks=False)):
                    held += _size_of(entry.path)
    except OSError as error:
        raise NoBundleError(f"{directory}: {_why(error)}") from error
    return held


def _size_of(folder):
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size
                       for entry in entries)
    except OSError:
        return 0  # another user's, or it went away


def _make(directory, number):
    """(path, name): the folder that is filled, and its name when whole."""
    rank = os.environ.get("RANK", "")
    rank = int(rank) if rank.isascii() and rank.isdecimal() else 0
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for again in range(number, number + 100):
        name = f"{PREFIX}{when}_{os.getpid()}_{rank}_{again}"
        path = os.path.join(directory, name)
        if os.path.lexists(path):
            continue
        try:
            os.mkdir(path + PARTIAL, 0o700)
            return path + PARTIAL, name
        except FileExistsError:
            continue
        except OSError as error:
            raise NoBundleError(f"{directory}: {_why(error)}") from error
    raise NoBundleError(f"{directory} has a hundred bundles of this process "
                        "and second")


class _Files:
    """What is in the folder, within its bounds."""

    def __init__(self, folder, left, deadline):
        self.folder, self._left, self.deadline = folder, left, deadline
        self.written, self.left_out = {}, {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, name, make):
        """make(path) writes the file; what cannot be is left out."""
        try:
            if time.monotonic() >= self.deadline:
                raise LeftOutError("the time was over (oom_max_seconds)")
            make(self.path(name))
            self._note(name)
        except LeftOutError as why:
            self._leave(name, str(why))
        except Exception as error:  # pylint: disable=broad-exception-caught
            # Whatever one file fails of: the others are worth having.
            self._leave(name, f"{type(error).__name__}: {_why(error)}")

    def keep(self, name):
        """Somebody else wrote it."""
        try:
            self._note(name)
        except (LeftOutError, OSError) as why:
            self._leave(name, _why(why))

    def _note(self, name):
        """It is there; LeftOutError if it is more than is left."""
        size = os.path.getsize(self.path(name))
        if size > self._left:
            raise LeftOutError(f"{size} bytes are more than the {self._left} "
                               "that are left of oom_max_bytes")
        os.chmod(self.path(name), 0o600)
        self._left -= size
        self.written[name] = size

    def _leave(self, name, why):
        try:
            os.unlink(self.path(name))
        except OSError:
            pass
        self.left_out[name] = why

    def remove_others(self):
        """What a child that was ended left."""
        for name in os.listdir(self.folder):
            if name not in self.written:
                os.unlink(self.path(name))

    def text(self, name, text):
        self.add(name, lambda path: _put(path, text.encode(
            "utf-8", "backslashreplace")))

    def json(self, name, values):
        self.add(name, lambda path: _put(path, _json(values)))

    def finish(self, report, begun):
        """manifest.json, the last file; LeftOutError without the report."""
        for name in ("report.md", "report.json"):
            if name not in self.written:
                raise LeftOutError(f"{name}: {self.left_out.get(name)}")
        about = _about()
        if report.is_redacted:
            for name in _NAMED:
                about.pop(name, None)
        _put(self.path("manifest.json"), _json(
            {"schema": SCHEMA, **about, "device": report.device,
             "redacted": report.is_redacted, "verdict": report.verdict.kind,
             "sentence": report.verdict.sentence,
             "seconds": round(time.monotonic() - begun, 3),
             "files": self.written, "left_out": self.left_out}))


def _json(values):
    return json.dumps(values, indent=1, default=str).encode(
        "utf-8", "backslashreplace")


def _put(path, data):
    """A new file of ours alone."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
                     0o600)
    with open(handle, "wb") as file:
        file.write(data)


def _about():
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "driver": _driver(), **_trace.about()}


def _driver():
    """The CUDA driver's version as it says it (13000); None if it does not."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(
            ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else version.value


def _fill(files, report):
    """The most telling first, since time may be over."""
    files.text("report.md", report.text())
    files.json("report.json", report.to_dict())
    files.json("settings.json", report.facts["settings"])
    files.add("run.strata", functools.partial(_recording, report.is_redacted))
    if report.is_redacted:
        files.left_out |= dict.fromkeys(
            ("env.json", "stats.json", "snapshot.pickle"), _REDACTED)
    else:
        files.json("env.json", {name: os.environ[name] for name in _VARIABLES
                                if name in os.environ})
        files.add("stats.json", lambda path: _put(path, _json(
            _statistics(report.device))))
        files.add("snapshot.pickle", _snapshot)
    _convert(files)


def _statistics(device):
    torch = sys.modules["torch"]
    return {"report": _core.report(device),
            "fragmentation": _core.fragmentation(device),
            "memory_stats": torch.cuda.memory_stats(device)}


def _snapshot(path):
    values = sys.modules["torch"].cuda.memory._snapshot()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW,
                     0o600)
    with open(handle, "wb") as file:
        pickle.dump(values, file)


def _recording(redacted, path):
    number = _core.flight_recording() or _record.number()
    if number == 0:
        raise LeftOutError("no events were recorded: telemetry is below "
                           "`events`, and the program runs without --record")
    _core.write_recording(number, path, _trace.about(), redact=redacted,
                          over=False)


# Made of the recording by a child, which is ended with the time; the first is
# the most telling.
_CONVERTED = ("report.html", "peak.speedscope.json", "trace.pftrace")


def _convert(files):
    if "run.strata" not in files.written:
        for name in _CONVERTED:
            files.left_out[name] = "it is made of run.strata"
        return
    said = _run_child(files)
    for name in _CONVERTED:
        if os.path.isfile(files.path(name)):
            files.keep(name)
        else:
            files.left_out[name] = said.get(
                name, said.get("", "the time was over (oom_max_seconds)"))
    files.remove_others()


def _run_child(files):
    """{name: why} of what it did not make; under "" why it made nothing."""
    if not sys.executable:
        return {"": "there is no Python interpreter to make it with"}
    package = os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    start = (f"import sys; sys.path.insert(0, {package!r}); "
             "from stratalloc._oom import exports; exports.main(sys.argv[1:])")
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("STRATALLOC") and key != "LD_PRELOAD"}
    left = files.deadline - time.monotonic()
    if left <= 0:
        return {}
    try:
        done = subprocess.run(
            [sys.executable, "-c", start, files.folder, *_CONVERTED],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=left, check=False, umask=0o077)
        if done.returncode != 0:
            return {"": "the process that makes it ended with "
                        f"{done.returncode}"}
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {}
    except (OSError, ValueError) as error:
        return {"": f"the process that makes it failed: {_why(error)}"}
