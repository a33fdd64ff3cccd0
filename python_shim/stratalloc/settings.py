# SPDX-License-Identifier: Apache-2.0
"""Config: what a user may choose, from Python or from STRATALLOC_CONF.

(The module is not called config because stratalloc.config is a function.)

One frozen dataclass; each field is a key of STRATALLOC_CONF
("key:value,key:value"). Bad input is a ValueError that names the key, the
value and the nearest valid key; nothing is guessed and nothing is ignored.
`resolved()` fills what the user left open from the machine (memory, free
disk), so that the core is always told plain numbers.
"""

import dataclasses
import difflib
import os
import re
import shutil
import tempfile

from stratalloc._core import TELEMETRY_LEVELS

_UNITS = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")

# The largest spill file we take without being asked: a parameter set of
# 16 billion fp32 values, and a quota a laptop disk survives.
_DISK_DEFAULT = 64 << 30


def parse_size(text):
    """Bytes of "32MiB", "1.5GiB", "4096"; ValueError if it is none of them."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError("not a size (write 32MiB, 2GiB or plain bytes)")
    number, unit = match.groups()
    if unit and unit.lower() not in _UNITS:
        raise ValueError(f"unknown unit {unit!r}{_meant(number, unit)} "
                         "(the units are B, KiB, MiB, GiB and TiB)")
    factor = _UNITS[unit.lower()] if unit else 1
    value = float(number) * factor if "." in number else int(number) * factor
    if value != int(value):
        raise ValueError("not a whole number of bytes")
    if value >= 1 << 63:
        raise ValueError("larger than any memory")
    return int(value)


def _meant(number, unit):
    """M and MB are 10^6 bytes to some and 2^20 to others: we do not guess."""
    for known in ("KiB", "MiB", "GiB", "TiB"):
        if unit.lower() in (known[0].lower(), known[0].lower() + "b"):
            return f"; write {number}{known}"
    return ""


def format_size(value):
    """Bytes for people: the largest IEC unit that keeps three digits."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            scaled = value / factor
            digits = 0 if scaled == int(scaled) else 2 if scaled < 100 else 1
            return f"{sign}{scaled:.{digits}f} {unit}"
    return f"{sign}{value} B"


def _size(value):
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("not a size (write 32MiB, 2GiB or plain bytes)")
    size = parse_size(value) if isinstance(value, str) else value
    if size < 0:
        raise ValueError("negative")
    return size


def _switch(value):
    if isinstance(value, bool):
        return value
    if value in ("on", "off"):
        return value == "on"
    raise ValueError("neither on nor off")


def _fraction(value):
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError("not a number between 0 and 1") from None
    if not 0.0 < number <= 1.0:
        raise ValueError("not a number above 0 and at most 1")
    return number


def _level(value):
    if value not in TELEMETRY_LEVELS:
        raise ValueError(f"not one of {', '.join(TELEMETRY_LEVELS)}")
    return value


def _directory(value):
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("not a path")
    path = os.fspath(value)
    if path and not os.path.isdir(path):
        raise ValueError("no such directory")
    return path


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the allocator; see the README of python_shim for each.

    None means "choose from the machine when enabled". A field given as text
    is read like a value of STRATALLOC_CONF.
    """

    tiering: bool = True
    gpu_limit: int = 0  # bytes per device; 0 = the card's memory
    host_budget: int | None = None  # pinned bytes; 0 = no host tier
    disk_budget: int | None = None  # spill file bytes; 0 = no disk
    disk_dir: str = ""  # "" = $TMPDIR, else /tmp
    gpu_offload_threshold: float | None = None  # .85
    gpu_emergency_threshold: float | None = None  # .95
    gpu_reload_threshold: float | None = None  # .70
    cpu_offload_threshold: float = 0.90
    # The GPU's thresholds act from the start, not from the first request that
    # could not be served; None: if one of them was set.
    eager_offload: bool | None = None
    telemetry: str = "counters"

    def __post_init__(self):
        set_by_hand = [name for name in _GPU_THRESHOLDS
                       if getattr(self, name) is not None]
        if self.eager_offload is None:
            object.__setattr__(self, "eager_offload", bool(set_by_hand))
        for name, default in _GPU_THRESHOLDS.items():
            if name not in set_by_hand:
                object.__setattr__(self, name, default)
        for name, reader in _READERS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            try:
                object.__setattr__(self, name, reader(value))
            except ValueError as reason:
                raise ValueError(
                    f"stratalloc: bad value {value!r} for key {name!r}: "
                    f"{reason}") from None
        low, high = self.gpu_reload_threshold, self.gpu_emergency_threshold
        if not low <= self.gpu_offload_threshold <= high:
            raise ValueError(
                "stratalloc: bad value "
                f"{self.gpu_offload_threshold!r} for key "
                "'gpu_offload_threshold': not between gpu_reload_threshold "
                f"({low}) and gpu_emergency_threshold ({high})")

    @classmethod
    def keys(cls):
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def parse(cls, text):
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
    def from_env(cls, environ=None):
        environ = os.environ if environ is None else environ
        return cls.parse(environ.get("STRATALLOC_CONF", ""))

    def replace(self, **overrides):
        for key, value in overrides.items():
            if key not in self.keys():
                raise ValueError(_unknown(key, value))
        if _GPU_THRESHOLDS.keys() & overrides.keys():
            overrides.setdefault("eager_offload", True)
        return dataclasses.replace(self, **overrides)

    def resolved(self):
        """The same, with every None replaced by a number for this machine."""
        directory = self.disk_dir or default_disk_dir()
        host, disk = self.host_budget, self.disk_budget
        if host is None:
            host = default_host_budget()
        if disk is None:
            disk = default_disk_budget(directory)
        return dataclasses.replace(
            self, host_budget=host, disk_budget=disk, disk_dir=directory)

    def to_dict(self):
        return dataclasses.asdict(self)


_OPTIONAL = ("host_budget", "disk_budget")
_GPU_THRESHOLDS = {
    "gpu_offload_threshold": 0.85,
    "gpu_emergency_threshold": 0.95,
    "gpu_reload_threshold": 0.70,
}
_READERS = {
    "tiering": _switch,
    "gpu_limit": _size,
    "host_budget": _size,
    "disk_budget": _size,
    "disk_dir": _directory,
    "gpu_offload_threshold": _fraction,
    "gpu_emergency_threshold": _fraction,
    "gpu_reload_threshold": _fraction,
    "cpu_offload_threshold": _fraction,
    "eager_offload": _switch,
    "telemetry": _level,
}


def _unknown(key, value):
    nearest = difflib.get_close_matches(key.lower(), Config.keys(), 1, 0.0)[0]
    given = "" if value is None else f" (value {value!r})"
    return (f"stratalloc: unknown key {key!r}{given}; did you mean "
            f"{nearest!r}? Valid keys: {', '.join(Config.keys())}")


def default_disk_dir():
    return os.environ.get("TMPDIR") or tempfile.gettempdir()


def default_disk_budget(directory):
    """At most 64 GiB and half of what is free: a quota, not a reservation."""
    return min(_DISK_DEFAULT, shutil.disk_usage(directory).free // 2)


def default_host_budget(proc="/proc", cgroup="/sys/fs/cgroup", environ=None):
    """Half of the memory that is available, shared by a job's processes here.

    Available is the smaller of MemAvailable and what the control group (v2,
    else v1) still allows; pinned memory beyond that invites the OOM killer.
    torchrun and its like say in LOCAL_WORLD_SIZE how many processes a machine
    has; each would take half otherwise.
    """
    available = [_meminfo(proc)]
    available += _cgroup_room(proc, cgroup)
    half = min(value for value in available if value is not None) // 2
    return half // _local_processes(os.environ if environ is None else environ)


def _local_processes(environ):
    """LOCAL_WORLD_SIZE; 1 without it, and where it is no number of processes."""
    text = environ.get("LOCAL_WORLD_SIZE", "").strip()
    return max(int(text), 1) if text.isascii() and text.isdigit() else 1


def _meminfo(proc):
    with open(os.path.join(proc, "meminfo"), encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    raise RuntimeError("stratalloc: /proc/meminfo has no MemAvailable; "
                       "set host_budget")


def _read_number(path):
    """The number in a control file; None for "max" or no such file."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_room(proc, root):
    """Bytes left under each limited control group of this process."""
    room = []
    try:
        with open(os.path.join(proc, "self/cgroup"), encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return room
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = os.path.join(root, "memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        # A limit may stand on any ancestor, and inside a container the path
        # may not exist below the mount: then only the root is visible.
        while True:
            folder = os.path.join(base, path.lstrip("/"))
            limit = _read_number(os.path.join(folder, names[0]))
            used = _read_number(os.path.join(folder, names[1]))
            if limit is not None and used is not None:
                room.append(max(limit - used, 0))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return room
