# SPDX-License-Identifier: Apache-2.0
"""ctypes face of libstratalloc.so, the torch-free core.

One function per function of python_shim/c_api/c_api.h, with Python types in and
out (declarations.py has those of C); nothing here knows torch. Loading is lazy: importing this module opens no
shared object. Every call through ctypes releases the GIL, so a call that
waits for a copy never stops another Python thread.

Errors of the core become exceptions in `check`: out of memory is torch's
OutOfMemoryError, everything else about devices, tiers and files a
RuntimeError, a bad argument a ValueError, exhausted host memory a MemoryError;
the message is the core's own text.

Log lines are *not* routed through a Python callback: the core logs from
its mover thread and from inside `malloc`, and a callback would take the GIL
there, which the thread it waits for may hold. The core writes its lines to
stderr itself; what Python decides goes to logging.getLogger("stratalloc").
"""

import ctypes
import json
import os
import re
import threading

from stratalloc._native import device_metrics as _device_metrics
from stratalloc._native import intact as _intact
from stratalloc._native.declarations import (
    Error, Pin, Placement, Range, Setting, Trial, Tried, declare)

OUT_OF_MEMORY = 1
INVALID_ARGUMENT = 2
NOT_FOUND = 3
UNSUPPORTED = 4
DEVICE_ERROR = 5
IO_ERROR = 6
CORRUPT = 7
HOST_OUT_OF_MEMORY = 8
SHUTDOWN = 9

ALL_DEVICES = -1  # of evict and restore

DISK_CODECS = ("off", "lz4", "zstd")
TELEMETRY_LEVELS = ("off", "counters", "events", "callsites", "full")

# The folder of the package.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class LibraryError(RuntimeError):
    """A shared object of this package is missing or cannot be loaded."""


def library_path(name):
    """Path of a shared object of the package; raises if it is not there, or not
    as it was installed."""
    path = os.path.join(PACKAGE, "lib", name)
    if not os.path.exists(path):
        raise missing(path)
    try:
        damaged = _intact.is_damaged(PACKAGE, _installed_version(), path)
    except (OSError, ValueError) as error:
        raise LibraryError(
            f"stratalloc: {name} cannot be compared with what was installed "
            f"({error}): install stratalloc again") from None
    if damaged:
        raise LibraryError(
            f"stratalloc: {name} is not as it was installed, some of its bytes "
            "have changed: install stratalloc again")
    return path


def missing(path, distribution="stratalloc"):
    """The LibraryError for a file that a package should have in a folder."""
    folder, name = os.path.split(path)
    cure = (f"the installation is damaged; install {distribution} again"
            if _intact.is_installed(os.path.dirname(folder)) else
            "this is a source tree; run `./dev build`")
    return LibraryError(
        f"stratalloc: {name} is missing from {folder}: {cure}")


def _installed_version():
    """The version of this package; None: no build has written it."""
    try:
        from stratalloc._version import __version__
    except ImportError:
        return None
    return __version__


_PIN_PROGRAM = 2  # STRATALLOC_PIN_PROGRAM
_NOBODY_SAYS = _NO_LIMIT = (1 << 64) - 1

_lock = threading.Lock()
_lib = None


def lib():
    """The loaded core (a ctypes.CDLL); loads it at the first call."""
    global _lib
    if _lib is None:
        with _lock:
            if _lib is None:
                _lib = _open(library_path("libstratalloc.so"))
    return _lib


def _open(path):
    try:
        return declare(ctypes.CDLL(path))
    except AttributeError as error:
        raise LibraryError(
            f"stratalloc: the core is of another version ({error}); install "
            "stratalloc again") from None
    except OSError as error:
        if "static TLS" not in str(error):
            raise LibraryError(
                f"stratalloc: the core does not load: {error}; "
                f"{_cure(str(error))}") from None
        raise LibraryError(
            "stratalloc: the libraries that this process loaded before left "
            "no room for 320 bytes of thread-locals: enable stratalloc before "
            "they are loaded, or start Python with GLIBC_TUNABLES="
            "glibc.rtld.optional_static_tls=2048"
        ) from error


def _cure(text):
    """What helps against what the dynamic linker says."""
    if "cannot open shared object file: No such file" in text:
        return "install the library that it names"
    if re.search(r"version `.*' not found", text):
        return ("this system is older than those that it was built for: build "
                "stratalloc on it, with `pip install .` in a clone")
    return "install stratalloc again"


def loaded():
    return _lib is not None


def raise_error(code, message):
    message = message or f"stratalloc: error {code}"
    if code == INVALID_ARGUMENT:
        raise ValueError(message)
    if code == HOST_OUT_OF_MEMORY:
        raise MemoryError(message)
    if code == OUT_OF_MEMORY:
        import torch

        raise torch.OutOfMemoryError(message)
    raise RuntimeError(message)


def check(code, error):
    if code != 0:
        raise_error(code, error.message.decode("utf-8", "replace"))


def holds_function():
    """Address of stratalloc_holds, for who asks often and from C."""
    return ctypes.cast(lib().stratalloc_holds, ctypes.c_void_p)


def listen_to_host(checksummed, let_go, went_on, chose, is_phantom):
    """C functions that are called with what the host does (c_api.h)."""
    lib().stratalloc_listen_to_host(*(
        ctypes.cast(function, ctypes.c_void_p)
        for function in (checksummed, let_go, went_on, chose, is_phantom)))


def _take_string(address):
    """Copies a char* of the core and gives it back."""
    if not address:
        return ""
    try:
        return ctypes.string_at(address).decode("utf-8", "replace")
    finally:
        lib().stratalloc_string_free(address)


def anything_evictable():
    """False with tiering off, before CUDA and under another allocator.

    True from CUDA's initialisation on, before there is any memory."""
    return _lib is not None and ctypes.c_uint64.in_dll(
        _lib, "stratalloc_evictable_hi").value != 0


def version():
    return lib().stratalloc_version().decode()


def host_memory(root=""):
    """(total, available) bytes of the machine or its container; None for what
    nobody says. `root` stands before /proc and /sys/fs/cgroup."""
    total, available = ctypes.c_uint64(), ctypes.c_uint64()
    lib().stratalloc_host_memory(os.fsencode(root), ctypes.byref(total),
                                 ctypes.byref(available))
    return tuple(None if size.value == _NOBODY_SAYS else size.value
                 for size in (total, available))


def initialized():
    return bool(_lib is not None and _lib.stratalloc_initialized())


def configure(config, host_budget_is_given):
    """Hands a resolved Config (no field None) to the core."""
    settings = {key: value for key, value in config.to_text()
                if key not in config.of_python()}
    settings["host_budget_is_given"] = "on" if host_budget_is_given else "off"
    array = (Setting * len(settings))(
        *((key.encode(), os.fsencode(value))
          for key, value in settings.items()))
    error = Error()
    code = lib().stratalloc_configure(array, len(array), ctypes.byref(error))
    check(code, error)


def report(device):
    """The core's report on one device as a dict; {} before CUDA exists."""
    text = _take_string(lib().stratalloc_report_json(device))
    return json.loads(text) if text else {}


def device_count():
    """How many devices there are, opened or not; 0 before CUDA is initialised,
    which this does not do, and in a forked child."""
    return _lib.stratalloc_device_count() if _lib is not None else 0


def metrics(device, named=0):
    """What is shown of a device over time: a _device_metrics.Device, and a list
    of at most `named` _device_metrics.Scope, those that owned most at any time.

    Never calls CUDA and waits for no migration (c_api.h). ValueError: there is
    no such device, or CUDA is not initialised; RuntimeError: a forked child."""
    found = _device_metrics.Device(size=ctypes.sizeof(_device_metrics.Device))
    scopes = (_device_metrics.Scope * named)()
    count, error = ctypes.c_int(0), Error()
    check(lib().stratalloc_metrics(device, ctypes.byref(found), scopes, named,
                                   ctypes.byref(count), ctypes.byref(error)),
          error)
    return found, scopes[:count.value]


def scope_name(scope):
    return _take_string(lib().stratalloc_scope_name(scope))


def held(device):
    """Who holds bytes (c_api.h) as a dict."""
    return _answer(lib().stratalloc_held_json(device))


def fragmentation(device):
    """What is reserved and not allocated (c_api.h) as a dict; {} before."""
    return _answer(lib().stratalloc_fragmentation_json(device))


def explain(device, size, stream):
    """What would serve a malloc (c_api.h) as a dict."""
    return _answer(lib().stratalloc_explain_json(device, size, stream))


def limit_scope(device, path, size):
    """Bytes that a scope and what is below it may own; None: no limit."""
    error = Error()
    code = lib().stratalloc_limit_scope(
        device, path.encode(), _NO_LIMIT if size is None else size,
        ctypes.byref(error))
    if size is not None or code != NOT_FOUND:
        check(code, error)


def sites(device):
    """What was allocated where (c_api.h) as a dict."""
    return _answer(lib().stratalloc_sites_json(device))


def hear_refusals(listener):
    """A REFUSAL_LISTENER, which the caller keeps alive; None for nobody."""
    lib().stratalloc_hear_refusals(
        None if listener is None else ctypes.cast(listener, ctypes.c_void_p))


def refusal(told):
    """What the core knows of a refusal (c_api/refusals.h) as a dict."""
    return _answer(lib().stratalloc_refusal_json(told))


def try_again(told, trials):
    """[Tried] of a refusal: `trials` are dicts of Trial's fields, `frees` a
    list of addresses."""
    made, tried, error = (Trial * len(trials))(), (Tried * len(trials))(), Error()
    for trial, fields in zip(made, trials):
        for name, value in fields.items():
            if name == "frees":
                trial.count = len(value)
                value = (ctypes.c_uint64 * len(value))(*value)
            setattr(trial, name, value)
    check(lib().stratalloc_try(told, made, len(made), tried,
                               ctypes.byref(error)), error)
    return list(tried)


before_rings = None  # called once, before rings begin that may lie anywhere


def _call_before_rings():
    global before_rings
    call, before_rings = before_rings, None
    if call is not None:
        call()


def set_telemetry(level):
    error = Error()
    if TELEMETRY_LEVELS.index(level) >= TELEMETRY_LEVELS.index("events"):
        _call_before_rings()
    check(lib().stratalloc_set_telemetry(level.encode(), ctypes.byref(error)),
          error)


def set_disk_codec(codec):
    """Of what goes to the disk from now on, one of DISK_CODECS; ValueError if
    it is none, RuntimeError if nothing can be evicted."""
    error = Error()
    check(lib().stratalloc_set_disk_codec(codec.encode(), ctypes.byref(error)),
          error)


def flight_recording():
    """The recording that the level keeps open; 0 for none."""
    return lib().stratalloc_flight_recording()


def begin_recording(area_file=None, ring_events=0, redacted=False):
    """The number of a recording that begins now (c_api.h)."""
    error, number = Error(), ctypes.c_uint64(0)
    if area_file is None:
        _call_before_rings()
    check(lib().stratalloc_recording_begin(
        None if area_file is None else os.fsencode(area_file), int(redacted),
        ring_events,
        ctypes.byref(number), ctypes.byref(error)), error)
    return number.value


def write_recording(number, path, about, redact, over):
    error = Error()
    check(lib().stratalloc_recording_write(
        number, os.fsencode(path), json.dumps(about, ensure_ascii=False).encode(
            errors="replace"), int(redact),
        int(over), ctypes.byref(error)), error)


def recover_recording(area_file, path, redact):
    error = Error()
    check(lib().stratalloc_recording_recover(
        os.fsencode(area_file), os.fsencode(path), int(redact),
        ctypes.byref(error)), error)


def mark(name):
    """A moment with a name, among the events."""
    if loaded():
        lib().stratalloc_mark(name.encode("utf-8", "replace"))


def check_invariants(device):
    """Raises a ValueError that names a sum that does not hold (c_api.h)."""
    error = Error()
    check(lib().stratalloc_check_invariants(device, ctypes.byref(error)),
          error)


def _answer(text):
    values = json.loads(_take_string(text))
    if "error" in values:
        raise RuntimeError(values["error"])
    return values


def _ranges(ranges):
    """(array, count); None, for everything evictable, as it is."""
    if ranges is None:
        return None, 0
    return (Range * len(ranges))(*(Range(*r) for r in ranges)), len(ranges)


def evict(device, ranges=None, to=None):
    """To one of TIERS alone, of those below the device, or to either (None)."""
    error, moved = Error(), ctypes.c_uint64(0)
    below = 0 if to is None else _device_metrics.TIERS.index(to)
    check(lib().stratalloc_evict(device, below, *_ranges(ranges),
                                 ctypes.byref(moved), ctypes.byref(error)),
          error)
    return moved.value


def restore(device, ranges=None):
    error, moved = Error(), ctypes.c_uint64(0)
    check(lib().stratalloc_restore(device, *_ranges(ranges),
                                   ctypes.byref(moved), ctypes.byref(error)),
          error)
    return moved.value


def switch_tiering_off():
    """Everything comes back and nothing leaves any more; bytes that came."""
    error, moved = Error(), ctypes.c_uint64(0)
    check(lib().stratalloc_switch_tiering_off(ctypes.byref(moved),
                                              ctypes.byref(error)), error)
    return moved.value


def tier_rule(device, ranges, host, disk, packing):
    """Where the blocks that hold these ranges may lie (c_api.h)."""
    error = Error()
    check(lib().stratalloc_tier_rule(device, *_ranges(ranges), int(host),
                                     int(disk), packing, ctypes.byref(error)),
          error)


def empty_cache(device):
    """torch.cuda.empty_cache() of one device (c_api.h)."""
    error = Error()
    check(lib().stratalloc_empty_cache(device, ctypes.byref(error)), error)


def residency(address, size):
    """Bytes of [address, address + size) on (device, host, disk)."""
    tiers, error = (ctypes.c_uint64 * 3)(), Error()
    check(lib().stratalloc_residency(address, size, tiers,
                                     ctypes.byref(error)), error)
    return tuple(tiers)


def placement(address):
    """A Placement of the block that holds this address."""
    found, error = Placement(), Error()
    check(lib().stratalloc_placement_of(address, ctypes.byref(found),
                                        ctypes.byref(error)), error)
    return found


def record_streams_of(address, other):
    """What record_stream() noted of a block counts for another one, too."""
    error = Error()
    check(lib().stratalloc_record_streams_of(address, other,
                                             ctypes.byref(error)), error)


def pin(ranges):
    """The blocks at these (address, bytes) stay, all or none: a Pin for each."""
    error, count = Error(), len(ranges)
    made = (Pin * count)()
    check(lib().stratalloc_pin_blocks(
        b"pin()", _PIN_PROGRAM, (Range * count)(*(Range(*r) for r in ranges)),
        count, made, ctypes.byref(error)), error)
    return list(made)


def unpin(pins):
    # Nobody saw what the program did with the memory.
    lib().stratalloc_unpin_blocks((Pin * len(pins))(*pins), len(pins), 1)


def is_pinned(pin):
    """Is the block of this pin alive, and pinned for this reason?"""
    return bool(lib().stratalloc_is_pinned(ctypes.byref(pin)))
