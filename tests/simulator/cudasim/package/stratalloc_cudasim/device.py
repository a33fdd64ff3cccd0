# SPDX-License-Identifier: Apache-2.0
"""The libraries of the device: loaded before torch's, the bridge behind it.

One device per process; none of it is undone. Called by the thread that imports
torch. What is missing is a LibraryError, a bad argument a ValueError.
"""

import ctypes
import os
import subprocess
import sys

from stratalloc._native import core as _core
from stratalloc import simulate
from stratalloc.sizes import format_size
from stratalloc.sizes import parse_size

MODES = ("eager", "async")
# What --card takes; "card" as the size means the card's own memory.
CARDS = ("generic", "h200", "a100", "rtx4090", "t4", "wsl2")
# "off": operators find shapes only, and device memory has no bytes.
NUMBERS = ("on", "off")

# Without them nothing runs; the bridge's name has torch's minor in it.
_NAMES = ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")

_state = None  # _Simulation once loaded
_preloaded = False  # torch was imported on top of these libraries


class _Simulation:
    """The loaded shared objects and what they were told."""

    def __init__(self, memory, devices, mode, seed, model, driver, libraries):
        self.memory = memory
        self.model = model  # (card, profile), either may be None
        self.devices = devices
        self.mode = mode
        self.seed = seed
        self.driver = driver
        self.libraries = libraries  # kept: a collected CDLL loses its handle
        self.twins = None
        self.bridge = None


def directory():
    """Where the libraries are."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def missing():
    """Names of the libraries that are not there."""
    return [name for name in _NAMES
            if not os.path.exists(os.path.join(directory(), name))]


def _path(name, required=True):
    path = os.path.join(directory(), name)
    if os.path.exists(path):
        return path
    if not required:
        return None
    raise _core.missing(path, "stratalloc-cudasim")


def current():
    """The _Simulation of this process, or None."""
    return _state


def numbers_off():
    """True if the simulated device of this process computes shapes only."""
    return _state is not None and _state.driver.cudasim_numbers() == 0


def is_phantom():
    """Whether the memory of the simulated device has addresses and no bytes."""
    return _state.driver.cudasim_is_phantom() == 1


def label():
    """One sentence for every output of a simulated run; "" if none is."""
    if _state is None:
        return ""
    devices = "device" if _state.devices == 1 else "devices"
    noop = os.environ.get("CUDASIM_NOOP_LAUNCH", "0") == "1"
    checked = os.environ.get("CUDASIM_CHECK_RAW_LAUNCHES", "")
    return (f"simulated CUDA: {_state.devices} {devices} of "
            f"{format_size(_state.memory)} in host memory, {_state.mode} "
            f"mode; no GPU is used{_model_label()}"
            + ("; kernels without a twin do NOTHING (CUDASIM_NOOP_LAUNCH)"
               if noop else "")
            + (f"; raw launches ({checked}) are checked and compute NOTHING "
               "(CUDASIM_CHECK_RAW_LAUNCHES)" if checked else "")
            + ("; operators compute shapes only, no number means anything "
               "(numbers off)" if numbers_off() else ""))


def _model_label():
    card, profile = _state.model
    if card is None and profile is None:
        return ""
    parts = [f"card {card}"] if card else []
    if profile:
        parts.append(f"profile {os.path.basename(profile)}")
    return f"; seconds are VIRTUAL, modelled by {', '.join(parts)}"


def check_model(card, profile):
    """ValueError if there is no such card or file."""
    for name in card.split(",") if card else ():
        if name not in CARDS:
            raise ValueError(
                f"stratalloc: there is no card {name!r}; the simulated ones "
                f"are {', '.join(CARDS)}")
    if profile is not None and not os.path.isfile(profile):
        raise ValueError(f"stratalloc: the profile {profile} is not a file")


def card_memory(card, profile):
    """(bytes that the card has, of these without its context's): asked in a
    process of its own, because in this one a device would be open.

    ValueError if there is no such card or file."""
    check_model(card, profile)
    done = subprocess.run([sys.executable, "-c", _ASK, card or "",
                           profile or ""], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(f"stratalloc: the memory of {card or profile} is not "
                         f"known: {last}")
    memory, context = map(int, done.stdout.split())
    return memory, memory - context


_ASK = """
import sys
from stratalloc_cudasim import device
card, profile = (text or None for text in sys.argv[1:])
device.open_device("card" if card else "64MiB", 1, "eager", 0, card, profile,
                   None)
print(device.driver().cudasim_capacity(0),
      int(device.driver().cudasim_card_figure(0, b"context_bytes")))
"""


def _check_model(memory, card, profile):
    check_model(card, profile)
    if memory == "card" and not card:
        raise ValueError(
            "stratalloc: --simulate card takes the card's own memory and "
            "needs --card")


def load(memory="64MiB", devices=1, mode="eager", seed=0, card=None,
         profile=None, numbers=None, phantom=False, call_ns=None):
    """Makes this process see simulated devices, then imports torch.

    A card or a JSON profile makes the devices model one: its properties, and a
    virtual clock (virtual_time()). `memory` may then be "card".

    `numbers` "off" runs shapes only, at sizes this machine has not the memory
    for; None leaves it to CUDASIM_NUMBERS, which is on by default. With
    `phantom` the memory has addresses and no bytes, and a call takes `call_ns`
    nanoseconds: for measurements of an allocator.

    Raises ValueError for bad arguments and RuntimeError if torch (which would
    have loaded the real CUDA runtime) is imported already.
    """
    known = _state is not None
    if not known and "torch" in sys.modules and not _preloaded:
        raise RuntimeError(
            "stratalloc: torch is already imported and has loaded the real "
            "CUDA runtime; call stratalloc.simulate.load() before the first "
            "`import torch`, or start with `stratalloc run --simulate`")
    if phantom:
        os.environ["CUDASIM_PHANTOM"] = "1"
    if call_ns is not None:
        os.environ["CUDASIM_CALL_NS"] = str(int(call_ns))
    open_device(memory, devices, mode, seed, card, profile, numbers)
    if known:
        return
    import torch

    before_enable(torch)


def preload():
    """Imports torch on top of these libraries; the device stays unknown.

    For a process that forks: each child then calls load(), with a device of its
    own, and has imported torch already. The environment is read by the first
    call of the driver, and no import makes one.
    """
    global _preloaded
    _libraries()
    _preloaded = True
    import torch  # noqa: F401


def _libraries():
    """The dynamic linker matches by soname: what is loaded first serves torch."""
    return [ctypes.CDLL(_path(name), mode=ctypes.RTLD_GLOBAL)
            for name in _NAMES]


def open_device(memory, devices, mode, seed, card, profile, numbers):
    """The device's libraries, before torch's; nothing if they are there."""
    global _state
    _check_model(memory, card, profile)
    size = None
    if memory != "card":
        size = parse_size(memory) if isinstance(memory, str) else int(memory)
    if size is not None and size < 2 << 20:
        raise ValueError(
            f"stratalloc: a simulated device of {format_size(size)} is below "
            "one 2 MiB page; give --simulate at least 2MiB")
    if mode not in MODES:
        raise ValueError(
            f"stratalloc: mode {mode!r} is neither eager nor async")
    if numbers is not None and numbers not in NUMBERS:
        raise ValueError(
            f"stratalloc: numbers {numbers!r} are neither on nor off")
    if int(devices) < 1:
        raise ValueError(f"stratalloc: {devices} simulated devices are too few; "
                         "give 1 or more")
    if _state is not None:
        if (size or _state.memory, int(devices), mode, (card, profile)) != (
                _state.memory, _state.devices, _state.mode, _state.model):
            raise RuntimeError("stratalloc: a different simulated device is "
                               "already loaded in this process")
        return
    # Read once, by the first call of the driver.
    if size is None:
        os.environ.pop("CUDASIM_MEMORY", None)
    else:
        os.environ["CUDASIM_MEMORY"] = str(size)
    if card is not None:
        os.environ["CUDASIM_CARD"] = card
    if profile is not None:
        os.environ["CUDASIM_PROFILE"] = os.path.abspath(profile)
    os.environ["CUDASIM_DEVICES"] = str(int(devices))
    os.environ["CUDASIM_MODE"] = mode
    os.environ["CUDASIM_SEED"] = str(int(seed))
    if numbers is not None:
        os.environ["CUDASIM_NUMBERS"] = numbers
    # torch hides devices by this; a simulated one has no siblings to hide.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    driver, *libraries = _libraries()
    # What Triton links its launchers with; it asks ldconfig otherwise.
    os.environ["TRITON_LIBCUDA_PATH"] = directory()
    _declare(driver)
    if size is None:
        size = driver.cudasim_capacity(0)
    _state = _Simulation(size, int(devices), mode, int(seed), (card, profile),
                         driver, libraries)
    twins = _path("libstratalloc_twins.so", required=False)
    if twins is not None:
        _state.twins = ctypes.CDLL(twins, mode=ctypes.RTLD_GLOBAL)
    simulate.register(sys.modules[__package__])


def before_enable(torch):
    """Installs the operator bridge.

    Called again by enable(): STRATALLOC=1 enables inside the `import torch` of
    load() above, before load() gets that far itself, and operators of libraries
    that were imported since are to be bridged below the guard, not over it.
    """
    if _state.bridge is not None:
        _install(_state.bridge)
        return
    minor = "_".join(torch.__version__.split(".")[:2])
    bridge = ctypes.CDLL(_path(f"libcudasim_torch_{minor}.so"))
    bridge.cudasim_bridge_error.restype = ctypes.c_char_p
    bridge.cudasim_bridge_storages_outside.restype = ctypes.c_long
    bridge.cudasim_bridge_set_owner.argtypes = (ctypes.c_void_p,)
    _install(bridge)
    _state.bridge = bridge


def _install(bridge):
    if bridge.cudasim_bridge_install() < 0:
        reason = bridge.cudasim_bridge_error().decode("utf-8", "replace")
        raise RuntimeError("stratalloc: the operator bridge of the simulated "
                           f"device did not install: {reason}")


def after_enable(torch):
    """From CUDA's initialisation on, storages that are not ours are counted.

    And from now on the device's clock sees what the host does: checksums, and
    threads that wait for each other.
    """
    _core.listen_to_host(_state.driver.cudasim_host_checksum,
                         _state.driver.cudasim_thread_release,
                         _state.driver.cudasim_thread_acquire,
                         _state.driver.cudasim_host_chose,
                         _state.driver.cudasim_is_phantom)

    def announce():
        from stratalloc import _enable

        # library() for a MemPool: torch's own allocator has stayed.
        if not _enable.is_enabled():
            return
        # A question, not a range: devices are opened as they are used.
        _state.bridge.cudasim_bridge_set_owner(_core.holds_function())

    # torch's own queue of calls for the moment CUDA is initialised.
    torch.cuda._lazy_call(announce)


def _declare(driver):
    for name in ("launches_without_twin", "launches_with_twin",
                 "launches_checked", "bridged_ops", "violation_count",
                 "live_handles", "live_mappings", "refused_calls"):
        getattr(driver, "cudasim_" + name).restype = ctypes.c_long
    driver.cudasim_calls.restype = ctypes.c_long
    driver.cudasim_calls.argtypes = (ctypes.c_char_p,)
    for name in ("capacity", "used", "peak_used"):
        function = getattr(driver, "cudasim_" + name)
        function.restype = ctypes.c_uint64
        function.argtypes = (ctypes.c_int,)
    driver.cudasim_card_figure.restype = ctypes.c_double
    driver.cudasim_card_figure.argtypes = (ctypes.c_int, ctypes.c_char_p)
    driver.cudasim_virtual_report.argtypes = (ctypes.c_char_p, ctypes.c_int)
    for name in ("violation", "last_missing_twin", "refused_names"):
        getattr(driver, "cudasim_" + name).restype = ctypes.c_int
    driver.cudasim_violation.argtypes = (
        ctypes.c_long, ctypes.c_char_p, ctypes.c_int)
    for name in ("last_missing_twin", "refused_names"):
        getattr(driver, "cudasim_" + name).argtypes = (
            ctypes.c_char_p, ctypes.c_int)


def driver():
    """The simulated driver (ctypes): the control API of cudasim; or None."""
    return None if _state is None else _state.driver
