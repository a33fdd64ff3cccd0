# SPDX-License-Identifier: Apache-2.0
"""`stratalloc doctor`: what this machine and installation can do, and why not.

Each finding is (name, state, detail) with state ok, note or problem; a
problem makes the exit code 3. Nothing is changed on the machine.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile

from stratalloc import simulate
from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core
from stratalloc._native import state as _state
from stratalloc._terminal import command as _command
from stratalloc.settings import Config
from stratalloc.settings import why_no_file
from stratalloc.sizes import format_size

_VIRTUAL_MEMORY_SUPPORTED = 102  # of CUdevice_attribute


def main(args):
    findings = list(_findings())
    broken = any(state == "problem" for _, state, _ in findings)
    written = args.json is None or args.json.write({
        "ok": not broken,
        "findings": [dict(zip(("name", "state", "detail"), finding))
                     for finding in findings]})
    if args.json is None or not args.json.on_stdout:
        for name, state, detail in findings:
            print(f"{state:<8} {name:<18} {detail}")
    if broken:
        return _command.EXIT_CANNOT
    return _command.EXIT_OK if written else _command.EXIT_FAILED


def _findings():
    yield "python", "ok", sys.version.split()[0]
    yield _core_state()
    yield from _torch_state()
    yield _simulated_state()
    yield from _config_state()
    yield _memlock_state()
    yield _ring_state()
    yield _sharing_state()


def _core_state():
    try:
        return "core", "ok", "libstratalloc.so " + _core.version()
    except (RuntimeError, OSError) as error:
        return "core", "problem", str(error)


def _torch_state():
    try:
        import torch
    except ImportError as error:
        yield "torch", "problem", str(error)
        return
    try:
        _bridge.load(torch.__version__)
    except RuntimeError as error:
        yield "torch", "problem", str(error)
    else:
        yield ("torch", "ok", f"{torch.__version__}; its bridge loads; bridges "
               f"here: {', '.join(_bridge.supported())}")
    if torch.cuda.is_available():
        yield "gpu", "ok", f"{torch.cuda.device_count()} visible"
        yield _virtual_memory_state(torch.cuda.device_count())
        yield _tiering_state()
    else:
        yield "gpu", "note", "none; `run --simulate` and `demo` need none"


def _virtual_memory_state(devices):
    """Asks the driver itself, which needs no context for that."""
    supported = ctypes.c_int()
    device = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuInit(0)
        without = []
        for index in range(devices):
            failed = failed or driver.cuDeviceGet(ctypes.byref(device), index)
            failed = failed or driver.cuDeviceGetAttribute(
                ctypes.byref(supported), _VIRTUAL_MEMORY_SUPPORTED, device)
            if not supported.value:
                without.append(str(index))
    except (OSError, AttributeError) as error:
        return "virtual memory", "note", f"the driver cannot tell: {error}"
    if failed:
        return "virtual memory", "note", f"the driver says error {failed}"
    if without:
        return ("virtual memory", "note", f"none on device {', '.join(without)}"
                ": memory comes from cudaMalloc and nothing can be evicted "
                "(as with tiering:off)")
    return "virtual memory", "ok", "every device can map memory"


# In a process of its own, since it opens every device and takes our allocator
# for it. A device that cannot even allocate says so itself.
_OPEN_EVERY_DEVICE = """
import json, torch, stratalloc
stratalloc.enable()
why_not = []
for device in range(torch.cuda.device_count()):
    try:
        torch.empty(1, device=device)
        why_not.append(stratalloc.report(device)["why_no_tiering"])
    except RuntimeError as error:
        why_not.append(str(error))
print(json.dumps(why_not))
"""


def _tiering_state():
    """Opens every device and asks what a job would be told."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _OPEN_EVERY_DEVICE], capture_output=True,
            text=True, check=False, timeout=300,
            env={**os.environ, "STRATALLOC": ""})
        why_not = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return ("tiering", "note", "the devices could not be tried; a program "
                "that calls stratalloc.enable() will say why")
    without = [f"from device {device}: {why}"
               for device, why in enumerate(why_not) if why]
    if without:
        return ("tiering", "note", "nothing can be evicted "
                + "; ".join(without))
    return "tiering", "ok", f"{len(why_not)} opened, none refuses"


def _simulated_state():
    device = simulate.installed()
    if device is None:
        return ("simulated device", "note",
                "not installed: pip install 'stratalloc[simulate]'")
    missing = device.missing()
    if missing:
        return "simulated device", "problem", "missing " + ", ".join(missing)
    return "simulated device", "ok", "loaded only when asked for"


def _config_state():
    if _state.forbidden():
        yield ("settings", "note", "STRATALLOC=0 in the environment keeps "
               "PyTorch's allocator")
    try:
        asked = Config.from_env()
        config = asked.resolved()
    except (ValueError, _core.LibraryError) as error:
        yield "settings", "problem", str(error)
        return
    yield ("settings", "ok", f"host budget {format_size(config.host_budget)}, "
           f"disk budget {format_size(config.disk_budget)} in "
           f"{config.disk_dir}")
    for key, value, meaning in asked.changed():
        yield "settings", "ok", f"{key}:{value} ({meaning})"
    for remark in asked.remarks(config):
        yield "settings", "note", remark
    yield _spill_state(asked, config)


def _spill_state(asked, config):
    """Makes a file there, writes to it, and asks whether the rest would fit."""
    if asked.disk_budget == 0:
        return "spill file", "ok", "none wanted (disk_budget 0)"
    if config.disk_budget == 0:
        why = why_no_file(config.disk_dir)
        return ("spill file", "note", "none: " + (
            f"{config.disk_dir} cannot hold one that is worth it"
            if why is None else
            f"no file can be made and written in {config.disk_dir}: {why}"
        ) + "; disk_dir names another directory")
    try:
        file, state, kind = _spill_file(config.disk_dir)
        with file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
            status = os.fstatvfs(file.fileno())
    except OSError as error:
        return ("spill file", "problem", f"{config.disk_dir}: no file can be "
                f"made and written there: {error.strerror}; set disk_dir")
    wanted = (f"{format_size(config.disk_budget)} that disk_budget is "
              f"{'by default' if asked.disk_budget is None else 'set to'}")
    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest != resource.RLIM_INFINITY and largest < config.disk_budget:
        return ("spill file", "problem", "a file may have "
                f"{format_size(largest)} (ulimit -f), not the {wanted}; raise "
                "the one or lower the other")
    free = status.f_bavail * status.f_frsize
    if free < config.disk_budget:
        return ("spill file", "problem", f"{config.disk_dir} has "
                f"{format_size(free)} free, not the {wanted}; lower it, or set "
                "disk_dir to a larger disk")
    return ("spill file", state, f"{kind}; {format_size(free)} free for at "
            f"most {format_size(config.disk_budget)}")


_PROBE = 1 << 16  # enough to make the file system find a place for it


def _spill_file(folder):
    """(file, state, how the disk tier will open it); OSError if it cannot."""
    flags = os.O_TMPFILE | os.O_RDWR
    try:
        descriptor = os.open(folder, flags, 0o600)
    except OSError as error:
        try:
            file = tempfile.TemporaryFile(dir=folder)
        except OSError:
            raise error from None
        return (file, "note",
                f"{folder} has no O_TMPFILE; a file is created and unlinked")
    file = os.fdopen(descriptor, "w+b")
    try:
        os.close(os.open(folder, flags | os.O_DIRECT, 0o600))
    except OSError:
        return (file, "note", f"{folder} refuses O_DIRECT: buffered I/O, which "
                "also costs page cache")
    return file, "ok", "unnamed, O_DIRECT"


def _memlock_state():
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return "locked memory", "ok", "unlimited"
    return ("locked memory", "ok" if soft >= 64 << 20 else "note",
            f"limit {format_size(soft)} (I/O buffers are registered with the "
            "kernel; below that plain buffers are used)")


_IO_URING_SETUP = 425  # of every architecture


def _ring_state():
    """Asks for a ring: a filter of system calls shows in no other way."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(ctypes.c_long(_IO_URING_SETUP), ctypes.c_uint(1),
                        ctypes.create_string_buffer(120))
    if ring >= 0:
        os.close(ring)
        return "io_uring", "ok", "allowed"
    return ("io_uring", "note", "io_uring_setup: "
            f"{os.strerror(ctypes.get_errno())}; preadv2/pwritev2 do the I/O, "
            "one transfer after the other")


_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # of every architecture
_PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"


def _sharing_state():
    """How other processes come to memory that this one shares."""
    why = _why_no_descriptors()
    if why is None:
        return "sharing", "ok", "other processes may take descriptors"
    return ("sharing", "note", f"{why}: a process that uses stratalloc asks over "
            "a socket, and one with PyTorch's own allocator cannot map this "
            "one's memory (container: --cap-add=SYS_PTRACE)")


def _why_no_descriptors():
    """None if a process of this user may take this one's descriptors.

    Asks for one of its own: a filter of system calls shows in no other way.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    process = libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_int(os.getpid()),
                           ctypes.c_uint(0))
    if process < 0:
        return f"pidfd_open: {os.strerror(ctypes.get_errno())}"
    try:
        taken = libc.syscall(ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(process),
                             ctypes.c_int(process), ctypes.c_uint(0))
        if taken < 0:
            return f"pidfd_getfd: {os.strerror(ctypes.get_errno())}"
        os.close(taken)
    finally:
        os.close(process)
    try:
        with open(_PTRACE_SCOPE, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return None  # no Yama
    return None if scope == "0" else f"kernel.yama.ptrace_scope is {scope}"
