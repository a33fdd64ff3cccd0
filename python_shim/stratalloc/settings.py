# SPDX-License-Identifier: Apache-2.0
"""Config: what a user may choose, from Python or from STRATALLOC_CONF.

(The module is not called config because stratalloc.config is a function.)

One frozen dataclass; each field is a key of STRATALLOC_CONF
("key:value,key:value"). Bad input is a ValueError that names the key, the
value and the nearest valid key; nothing is guessed and nothing is ignored.
`resolved()` fills what the user left open from the machine (memory, free
disk), so that the core is always told plain numbers.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shutil
import tempfile
import textwrap
import typing

from stratalloc._native import core as _core
from stratalloc._native.argument_types import Codec, TelemetryLevel
from stratalloc._setting_kinds import (
    CODEC, COUNT, DIRECTORY, FRACTION, LEVEL, SIZE, SWITCH, Kind)
from stratalloc.sizes import format_size

__all__ = ["Config"]

# The largest spill file we take without being asked: a parameter set of
# 16 billion fp32 values, and a quota a laptop disk survives.
_DISK_DEFAULT = 64 << 30


class _About(typing.NamedTuple):
    """What a field of Config knows beside its default."""

    kind: Kind
    meaning: str
    default: str  # in words, where it is the machine's; else ""
    unset: float | None  # of a threshold: what None becomes
    core: bool = True  # whether the core is told


def _setting(default, kind, meaning, in_words="", core=True):
    """A default of None: chosen later, when the machine is asked."""
    return dataclasses.field(default=default, metadata={
        "about": _About(kind, meaning, in_words, None, core)})


def _threshold(default, meaning):
    """One of the GPU's: whether somebody set it is remembered."""
    return dataclasses.field(default=None, metadata={
        "about": _About(FRACTION, meaning, "", default)})


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the allocator, each a key of STRATALLOC_CONF.

    None: enable() chooses the value from the machine. A field that is given as
    text is read like a value of STRATALLOC_CONF, a size as "8GiB".
    """  # help() has a line for each setting, too: _attributes()

    tiering: bool = _setting(
        True, SWITCH, "off: nothing is ever evicted, no guard")
    gpu_limit: int = _setting(
        0, SIZE, "bytes per device; 0 = the card's memory")
    host_budget: int | None = _setting(
        None, SIZE,
        "pinned host memory of this process for evicted blocks; 0 = the disk "
        "alone. What is given is neither divided nor cut to what the machine "
        "has available at the time; a container's limit holds. Beside it the "
        "disk tier pins two buffers, each as large as a handle (2 MiB, up to "
        "32 MiB on large cards, a quarter of a smaller budget)",
        "half of what is available, divided by `LOCAL_WORLD_SIZE` (torchrun's "
        "processes per machine)")
    disk_budget: int | None = _setting(
        None, SIZE,
        "quota of the spill file; 0 = no disk. 0 in both: nothing is evicted",
        "half of the free disk, at most 64 GiB")
    disk_dir: str = _setting(
        "", DIRECTORY,
        "where the unnamed spill file lives. On a tmpfs it is memory: choose a "
        "disk. `enable()` tries it: one that is given, or needed for a "
        "`disk_budget` that is given, and cannot hold a file is a "
        "`ValueError`; else there is no disk",
        "`$TMPDIR`, else `/tmp`")
    disk_codec: str = _setting(
        "off", CODEC,
        "off, lz4, zstd: how the spill file is compressed, for room and wear of "
        "the disk, not for speed: weights take 1.1 (lz4) to 1.2 and 1.4 (zstd, "
        "fp32 and bf16) times less, and on a disk of 2 GB/s are written 3 to 9 "
        "times as slowly. What does not get a sixteenth smaller is stored as it "
        "is ([tiering/io](../tiering/io/README.md))")
    gpu_offload_threshold: float | None = _threshold(
        .85, "above this share of the limit what is cold for good leaves")
    gpu_emergency_threshold: float | None = _threshold(
        .95, "above it that leaves before new memory is taken")
    gpu_reload_threshold: float | None = _threshold(
        .70, "background eviction stops here")
    eager_offload: bool | None = _setting(
        None, SWITCH,
        "these three act from the start; else from the first request that "
        "could not be served",
        "`off`, `on` if one of these three is set")
    cpu_offload_threshold: float = _setting(
        .90, FRACTION,
        "share of the host budget above which the coldest copies go to disk")
    telemetry: str = _setting(
        "counters", LEVEL,
        "off, counters, events, callsites, full. Off counts no time of scopes. "
        "From `events` on what happens is recorded in rings, which `dump()` "
        "writes. From `callsites` on memory is attributed to the lines of code "
        "that allocate it, sampled by bytes: `holders(by=\"site\")`, "
        "`diff(by=\"site\")`, `leaks().sites`. At `full` every allocation keeps "
        "its whole Python stack, for flame graphs and torch's viewer. Switched "
        "at run time by `telemetry_level()`; bytes are always counted")
    live: bool = _setting(
        False, SWITCH,
        "on: `stratalloc top` shows this process while it runs, from its first "
        "use of CUDA on, through a socket that its user and root can open, "
        "read-only ([telemetry](../telemetry/README.md))", core=False)
    oom_dir: str = _setting(
        "", DIRECTORY,
        "an existing directory: whoever is out of memory finds a folder "
        "there that says why and what would help, `oom_<UTC>_<pid>_<rank>_<n>` "
        "(`stratalloc oom` reads it). Once for each place of the program; "
        "below are its bounds", "nowhere", core=False)
    oom_max_dumps: int = _setting(
        8, COUNT, "folders of one process in `oom_dir`", core=False)
    oom_max_bytes: int = _setting(
        1 << 30, SIZE,
        "bytes of all such folders in `oom_dir` together: what would be more "
        "is left out, and nothing is removed", core=False)
    oom_max_seconds: int = _setting(
        20, COUNT,
        "how long the program waits for one of them: what is not written by "
        "then is left out", core=False)

    if typing.TYPE_CHECKING:  # fields are read from more types than they have
        def __init__(
            self,
            tiering: bool = True,
            gpu_limit: int | str = 0,
            host_budget: int | str | None = None,
            disk_budget: int | str | None = None,
            disk_dir: str | os.PathLike[str] = "",
            disk_codec: Codec = "off",
            gpu_offload_threshold: float = 0.85,
            gpu_emergency_threshold: float = 0.95,
            gpu_reload_threshold: float = 0.7,
            eager_offload: bool | None = None,
            cpu_offload_threshold: float = 0.9,
            telemetry: TelemetryLevel = "counters",
            live: bool = False,
            oom_dir: str | os.PathLike[str] = "",
            oom_max_dumps: int = 8,
            oom_max_bytes: int | str = 1 << 30,
            oom_max_seconds: int = 20,
        ) -> None: ...

    def __post_init__(self) -> None:
        unset = [field for field in _gpu_thresholds()
                 if getattr(self, field.name) is None]
        if self.eager_offload is None:
            object.__setattr__(self, "eager_offload",
                               len(unset) < len(_gpu_thresholds()))
        for field in unset:
            object.__setattr__(self, field.name, _about(field).unset)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            try:
                object.__setattr__(self, field.name,
                                   _about(field).kind.read(value))
            except ValueError as reason:
                raise ValueError(
                    f"stratalloc: bad value {value!r} for key {field.name!r}: "
                    f"{reason}") from None
        low, high = self.gpu_reload_threshold, self.gpu_emergency_threshold
        if not low <= self.gpu_offload_threshold <= high:
            raise ValueError(
                "stratalloc: bad value "
                f"{self.gpu_offload_threshold!r} for key "
                "'gpu_offload_threshold': not between gpu_reload_threshold "
                f"({low}) and gpu_emergency_threshold ({high})")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Names of all settings."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def parse(cls, text: str) -> Config:
        """Reads "key:value,key:value"; an empty text gives the defaults."""
        values = {}
        for item in text.split(","):
            item = item.strip()
            if not item:
                continue
            key, colon, value = item.partition(":")
            key, value = key.strip(), value.strip()
            if key not in cls.keys():
                raise ValueError(_unknown(key, value if colon else None))
            if not colon or not value:
                raise ValueError(
                    f"stratalloc: key {key!r} has no value in "
                    f"STRATALLOC_CONF item {item!r}; write {key}:VALUE")
            if key in values:
                raise ValueError(
                    f"stratalloc: key {key!r} is given twice in "
                    f"STRATALLOC_CONF ({values[key]!r} and {value!r})")
            values[key] = value
        return cls(**values)

    @classmethod
    def from_env(cls, environ: typing.Mapping[str, str] | None = None
                 ) -> Config:
        """Reads STRATALLOC_CONF; without it the defaults.

        Args:
          environ: another environment than this process's.

        Raises:
          ValueError: an unknown key, or a bad value.
        """
        environ = os.environ if environ is None else environ
        return cls.parse(environ.get("STRATALLOC_CONF", ""))

    def replace(self, **overrides: typing.Any) -> Config:
        """The same with other values of the settings that are given.

        Raises:
          ValueError: an unknown key, or a bad value.
        """
        for key, value in overrides.items():
            if key not in self.keys():
                raise ValueError(_unknown(key, value))
        if any(field.name in overrides for field in _gpu_thresholds()):
            overrides.setdefault("eager_offload", True)
        return dataclasses.replace(self, **overrides)

    def resolved(self) -> Config:
        """The same, with every None replaced by a number for this machine.

        ValueError if a disk was asked for where there can be none. Without a
        host_budget the core is asked for the memory, and loaded for that:
        LibraryError where it is missing.
        """
        directory = self.disk_dir or default_disk_dir()
        host, disk = self.host_budget, self.disk_budget
        if host is None:
            host = default_host_budget()
        why = None if disk == 0 else why_no_file(directory)
        if why is not None:
            self._refuse_directory(directory, why)
            disk = 0
        elif disk is None:
            disk = default_disk_budget(directory)
        return dataclasses.replace(
            self, host_budget=host, disk_budget=disk, disk_dir=directory)

    def _refuse_directory(self, directory, why):
        """Raises if somebody asked for a file there that will be needed."""
        if not self.tiering:
            return
        if self.disk_dir:
            raise ValueError(
                f"stratalloc: bad value {self.disk_dir!r} for key 'disk_dir': "
                f"it cannot hold the spill file: {why}")
        if self.disk_budget is not None:
            raise ValueError(
                f"stratalloc: bad value {format_size(self.disk_budget)} for "
                f"key 'disk_budget': {directory} cannot hold the spill file: "
                f"{why}; disk_dir names another directory")

    def _wants_disk(self):
        """Whether somebody said so."""
        return self.disk_budget != 0 and bool(self.disk_budget or self.disk_dir)

    def remarks(self, resolved: Config,
                memory: int | None = None) -> typing.Iterator[str]:
        """What of these settings cannot do what was meant, in sentences.

        They name what was set; where nothing was, what this machine has.
        `resolved` is resolved(); `memory` the machine's, for tests.
        """
        if not self.tiering:
            return
        if self.host_budget:
            yield from _beyond(
                self.host_budget, _local_processes(os.environ),
                _core.host_memory()[0] if memory is None else memory)
        no_host = _too_small(
            "host_budget", self.host_budget, resolved.host_budget, _HANDLE,
            "this machine has no memory to spare")
        no_disk = _too_small(
            "disk_budget", self.disk_budget, resolved.disk_budget,
            _HANDLE + _HEADER, f"{resolved.disk_dir} has no room for a spill "
            "file")
        if no_host and no_disk:
            yield f"{no_host} and {no_disk}: nothing can be evicted"
        elif no_host and self.host_budget != 0:
            yield f"{no_host}: what is evicted goes to the disk"
        elif no_disk and self._wants_disk():
            yield f"{no_disk}: what is evicted stays in host memory"

    def to_dict(self) -> dict[str, typing.Any]:
        """Each setting by its name; sizes in bytes."""
        return dataclasses.asdict(self)

    def to_text(self) -> typing.Iterator[tuple[str, str]]:
        """(key, value) of each field that is not None, as STRATALLOC_CONF has
        them; sizes in bytes."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, _about(field).kind.write(value)

    @classmethod
    def of_python(cls) -> tuple[str, ...]:
        """Keys that this package obeys, and the core is not told."""
        return tuple(field.name for field in dataclasses.fields(cls)
                     if not _about(field).core)

    def changed(self) -> typing.Iterator[tuple[str, str, str]]:
        """(key, value, meaning) of what is not as it is by default."""
        usual, about = dict(Config().to_text()), _meanings()
        for key, value in self.to_text():
            if value != usual.get(key, ""):
                yield key, value, about[key]


def _about(field):
    return field.metadata["about"]


def _meanings():
    return {field.name: _about(field).meaning
            for field in dataclasses.fields(Config)}


def _gpu_thresholds():
    return [field for field in dataclasses.fields(Config)
            if _about(field).unset is not None]


def table():
    """The settings as the README of python_shim shows them."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, default, meaning in _explained():
        rows.append(f"| `{name}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _explained():
    """(name, default, meaning) of each setting, in Markdown."""
    usual = dict(Config().to_text())
    for field in dataclasses.fields(Config):
        about = _about(field)
        default = about.default
        if not default:
            default = usual[field.name]
            if about.kind is FRACTION:
                default = f"{float(default):.2f}".removeprefix("0")
            elif about.kind not in (SIZE, COUNT):
                default = f"`{default}`"
        yield field.name, default, about.meaning


def _attributes():
    """The settings as lines of a docstring, which has no links."""
    for name, default, meaning in _explained():
        text = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", meaning)
        yield textwrap.fill(f"{name}: {text}. Default: {default}.", 80,
                            initial_indent=" " * 6, subsequent_indent=" " * 8)


if Config.__doc__:  # none under -OO
    Config.__doc__ += "\n".join(["\n    Attributes:", *_attributes(), "    "])


_HANDLE = 2 << 20  # the least that leaves the device at once
_LARGEST_HANDLE = 32 << 20  # size_rules.h
_HEADER = 4 << 10  # beside each one in the spill file


def _unknown(key, value):
    nearest = difflib.get_close_matches(key.lower(), Config.keys(), 1)
    given = "" if value is None else f" (value {value!r})"
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return (f"stratalloc: unknown key {key!r}{given}{hint} Valid keys: "
            f"{', '.join(Config.keys())}")


def _too_small(key, asked, size, least, otherwise):
    """Why nothing can be put there; None if something can."""
    if size >= least:
        return None
    if asked is None:
        return otherwise
    if asked == 0:
        return f"{key} is 0"
    return (f"{key} of {format_size(asked)} is less than what leaves the "
            f"device at once ({format_size(_HANDLE)}"
            + (f" and a header of {format_size(least - _HANDLE)})"
               if least > _HANDLE else ")"))


def _beyond(budget, processes, memory):
    if memory is None or budget * processes <= memory:
        return
    each = f" for each of {processes} processes" if processes > 1 else ""
    yield (f"host_budget of {format_size(budget)}{each} is more than the "
           f"{format_size(memory)} of memory that this machine or its "
           "container has: so much can never be evicted to it, and the kernel "
           "may end processes that try")


def default_disk_dir():
    # As the core chooses it. tempfile.gettempdir() tries more folders, raises
    # where none can be written to, and may choose the working directory.
    return os.environ.get("TMPDIR") or "/tmp"


def why_no_file(directory):
    """Why a file cannot be made and written there; None if it can."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(4096))
            file.flush()
            return None
    except OSError as error:
        return error.strerror or str(error)


def default_disk_budget(directory):
    """At most 64 GiB and half of what is free: a quota, not a reservation.

    0 where that holds fewer than four of the largest handles: a quarter of the
    disk budget bounds what leaves the device at once, and a disk that nobody
    asked for should not make that smaller, and each move dearer.
    """
    budget = min(_DISK_DEFAULT, shutil.disk_usage(directory).free // 2)
    return budget if budget >= 4 * (_LARGEST_HANDLE + _HEADER) else 0


def default_host_budget(root="", environ=None):
    """Half of the memory that is available, shared by a job's processes here.

    Pinned memory beyond that invites the OOM killer. torchrun and its like say
    in LOCAL_WORLD_SIZE how many processes a machine has; each would take half
    otherwise. `root` stands before /proc and /sys/fs/cgroup, for tests.
    """
    _, available = _core.host_memory(root)
    if available is None:
        raise RuntimeError(
            "stratalloc: this machine does not say how much memory is "
            "available (MemAvailable of /proc/meminfo); set host_budget")
    return available // 2 // _local_processes(
        os.environ if environ is None else environ)


def _local_processes(environ):
    """LOCAL_WORLD_SIZE; 1 without it, and where it is no number of processes."""
    text = environ.get("LOCAL_WORLD_SIZE", "").strip()
    return max(int(text), 1) if text.isascii() and text.isdigit() else 1
