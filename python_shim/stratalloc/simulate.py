# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA device in host memory, for machines without a GPU.

    from stratalloc import simulate
    simulate.load("64MiB")      # before torch is imported
    import torch                # sees cuda:0 with 64 MiB

The package carries libcuda.so.1 and libcudart.so.13 that implement CUDA on
host memory, and an operator bridge that computes each CUDA operator with its
CPU kernel on the same bytes, so numbers are real. Never loaded unless asked
for; whoever loads it says so in its output (`label()`).
"""

import ctypes
import json
import os
import sys

from stratalloc import _core
from stratalloc.settings import format_size
from stratalloc.settings import parse_size

MODES = ("eager", "async")
# What --card takes; "card" as the size means the card's own memory.
CARDS = ("generic", "h200", "a100", "rtx4090", "t4", "wsl2")
# "off": operators find shapes only, and device memory has no bytes.
NUMBERS = ("on", "off")

# What load() was told, for the processes this one starts; see for_children().
_CHILDREN = "STRATALLOC_SIMULATED_CHILD"

_state = None  # _Simulation once loaded


class _Simulation:
    """The loaded shared objects and what they were told."""

    def __init__(self, memory, devices, mode, seed, model, driver, runtime):
        self.memory = memory
        self.model = model  # (card, profile), either may be None
        self.devices = devices
        self.mode = mode
        self.seed = seed
        self.driver = driver
        self.runtime = runtime  # kept: a collected CDLL loses its handle
        self.twins = None
        self.bridge = None


def directory():
    return os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "simulated")


def _path(name, required=True):
    path = os.path.join(directory(), name)
    if os.path.exists(path):
        return path
    if not required:
        return None
    raise _core.LibraryError(
        f"stratalloc: {name} is missing from {directory()}: the simulated "
        "device is not part of this installation; run `./dev build`")


def loaded():
    return _state is not None


def numbers_off():
    """True if the simulated device of this process computes shapes only."""
    return _state is not None and _state.driver.cudasim_numbers() == 0


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


def _check_model(memory, card, profile):
    check_model(card, profile)
    if memory == "card" and not card:
        raise ValueError(
            "stratalloc: --simulate card takes the card's own memory and "
            "needs --card")


def load(memory="64MiB", devices=1, mode="eager", seed=0, card=None,
         profile=None, numbers=None):
    """Makes this process see simulated devices, then imports torch.

    A card or a JSON profile makes the devices model one: its properties, and a
    virtual clock (virtual_time()). `memory` may then be "card".

    `numbers` "off" runs shapes only, at sizes this machine has not the memory
    for; None leaves it to CUDASIM_NUMBERS, which is on by default.

    Raises ValueError for bad arguments and RuntimeError if torch (which would
    have loaded the real CUDA runtime) is imported already.
    """
    known = _state is not None
    if not known and "torch" in sys.modules:
        raise RuntimeError(
            "stratalloc: torch is already imported and has loaded the real "
            "CUDA runtime; call stratalloc.simulate.load() before the first "
            "`import torch`, or start with `stratalloc run --simulate`")
    _open(memory, devices, mode, seed, card, profile, numbers)
    if known:
        return
    import torch

    before_enable(torch)


def _open(memory, devices, mode, seed, card, profile, numbers):
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
        raise ValueError("stratalloc: at least one simulated device")
    if _state is not None:
        if (size or _state.memory, int(devices), mode, (card, profile)) != (
                _state.memory, _state.devices, _state.mode, _state.model):
            raise RuntimeError("stratalloc: a different simulated device is "
                               "already loaded in this process")
        return
    # Read once, when libcuda.so.1 is loaded.
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
    # The dynamic linker matches by soname: what is loaded first serves torch.
    driver = ctypes.CDLL(_path("libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    # What Triton links its launchers with; it asks ldconfig otherwise.
    os.environ["TRITON_LIBCUDA_PATH"] = directory()
    runtime = ctypes.CDLL(_path("libcudart.so.13"), mode=ctypes.RTLD_GLOBAL)
    _declare(driver)
    if size is None:
        size = driver.cudasim_capacity(0)
    _state = _Simulation(size, int(devices), mode, int(seed), (card, profile),
                         driver, runtime)
    twins = _path("libstratalloc_twins.so", required=False)
    if twins is not None:
        _state.twins = ctypes.CDLL(twins, mode=ctypes.RTLD_GLOBAL)


def for_children():
    """Python processes started from here on have such devices of their own.

    Whoever starts them (multiprocessing's spawn and forkserver, subprocess,
    torchrun): Python runs simulated_child/sitecustomize.py first, and that
    calls before_torch() and after_torch() if they import torch.
    """
    card, profile = _state.model
    os.environ[_CHILDREN] = json.dumps({
        "memory": os.environ.get("CUDASIM_MEMORY", "card"),
        "devices": _state.devices, "mode": _state.mode, "seed": _state.seed,
        "card": card, "profile": profile and os.path.abspath(profile),
        "numbers": None})  # inherited, as CUDASIM_NUMBERS
    folder = os.path.join(os.path.dirname(directory()), "simulated_child")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([folder, *filter(None, path)]))


def before_torch():
    """In a child: the device that for_children() of its parent described."""
    _open(**json.loads(os.environ[_CHILDREN]))


def after_torch(torch):
    """In a child, once torch is imported. Says at the end what was done."""
    from multiprocessing import util

    before_enable(torch)
    process = os.getpid()

    def say_at_the_end(_):
        # What this process forks has the same counts, and did not count them.
        if os.getpid() == process:
            util.Finalize(None, _last_line_of_child, exitpriority=0)

    # A child of a fork server ends without atexit, and begins by forgetting
    # what was to be done at its end; then it calls what is registered here.
    say_at_the_end(None)
    util.register_after_fork(_last_line_of_child, say_at_the_end)


def _last_line_of_child():
    if any(value for name, value in counters().items()
           if name not in ("capacity", "peak_used")):
        print(f"stratalloc: process {os.getpid()}, {last_line()}",
              file=sys.stderr)


def before_enable(torch):
    """Installs the operator bridge if a simulated device is loaded.

    Called again by enable(): STRATALLOC=1 enables inside the `import torch` of
    load() above, before load() gets that far itself, and operators of libraries
    that were imported since are to be bridged below the guard, not over it.
    """
    if _state is None:
        return
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
    if _state is None:
        return
    _core.listen_to_host(_state.driver.cudasim_host_checksum,
                         _state.driver.cudasim_thread_release,
                         _state.driver.cudasim_thread_acquire)

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


def violations():
    """Texts of what a real device would have punished, oldest first."""
    if _state is None:
        return []
    found = []
    for index in range(_state.driver.cudasim_violation_count()):
        text = ctypes.create_string_buffer(2048)
        _state.driver.cudasim_violation(index, text, len(text))
        found.append(text.value.decode("utf-8", "replace"))
    return found


def _text(function):
    """What one of the simulator's text functions says; "" for nothing."""
    buffer = ctypes.create_string_buffer(4096)
    function(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def last_line():
    """One line on what a run did and what was refused to it; or None."""
    found = counters()
    if not found:
        return None
    line = (f"simulated: {found['bridged_ops']} operators, "
            f"{found['launches_without_twin']} launches without a twin, "
            f"{found['refused_calls']} refused calls, "
            f"{found['violations']} violations")
    if found["launches_checked"]:
        line += (f", {found['launches_checked']} raw launches checked that "
                 "computed nothing")
    said = [text for text in (found["last_missing_twin"],
                              found["refused_names"]) if text]
    return line + (f" ({'; '.join(said)})" if said else "")


def virtual_time():
    """Virtual seconds and bytes so far; {} unless a card or profile is used.

    `seconds` is when all work submitted so far is over on the modelled card.
    Nothing of this was measured on one.
    """
    if _state is None or not _state.driver.cudasim_time_is_kept():
        return {}
    text = ctypes.create_string_buffer(2048)
    _state.driver.cudasim_virtual_report(text, len(text))
    report = json.loads(text.value)
    values = {"seconds": max(report["now_ns"], report["end_ns"]) / 1e9}
    for name, figure in report.items():
        if name in ("now_ns", "end_ns"):
            continue
        if name.endswith("_ns"):
            values[name[:-3] + "_seconds"] = figure / 1e9
        else:
            values[name] = figure
    return values


def counters():
    """What the simulated device counted; {} if none is loaded."""
    if _state is None:
        return {}
    sim = _state.driver
    return {
        "capacity": sim.cudasim_capacity(0),
        "peak_used": max(sim.cudasim_peak_used(device)
                         for device in range(_state.devices)),
        "bridged_ops": sim.cudasim_bridged_ops(),
        "launches_with_twin": sim.cudasim_launches_with_twin(),
        # Launches that had their pointers checked and computed nothing.
        "launches_checked": sim.cudasim_launches_checked(),
        "launches_without_twin": sim.cudasim_launches_without_twin(),
        "last_missing_twin": _text(sim.cudasim_last_missing_twin),
        # Calls of what the simulated device does not have.
        "refused_calls": sim.cudasim_refused_calls(),
        "refused_names": _text(sim.cudasim_refused_names),
        "violations": sim.cudasim_violation_count(),
        # CUDA storages the operators met outside our reservation.
        "storages_outside": (
            _state.bridge.cudasim_bridge_storages_outside()
            if _state.bridge else 0),
    }
