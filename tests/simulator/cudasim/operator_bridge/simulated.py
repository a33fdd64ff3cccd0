# SPDX-License-Identifier: Apache-2.0
"""Loads the simulated device and the operator bridge into a test's process,
and into the processes it starts.

Call load() before anything but preload() imports torch. One device per process: the settings
are read once, when libcuda.so.1 is loaded.
"""

import ctypes
import importlib.util
import os
import sys

_NVML = "libnvidia-ml.so.1"
_NAMES = ("libcuda.so.1", "libcudart.so.13", _NVML)
_FOLDERS = [
    "tests/simulator/cudasim" + folder
    for folder in ("", "/operator_bridge")
]


def find(name):
    """The library's path: $CUDASIM_LIBRARIES, the build, the package."""
    places = os.environ.get("CUDASIM_LIBRARIES", "").split(":")
    places += _FOLDERS
    package = importlib.util.find_spec("stratalloc_cudasim")
    if package is not None and package.submodule_search_locations:
        for root in package.submodule_search_locations:
            places.append(os.path.join(root, "lib"))
    for place in places:
        path = os.path.abspath(os.path.join(place, name))
        if place and os.path.exists(path):
            return path
    raise FileNotFoundError(
        f"{name} is in none of {places}; build //tests/simulator/cudasim/... or set "
        "CUDASIM_LIBRARIES"
    )


class Simulated:
    """The control functions that tests use, with their types."""

    def __init__(self, cuda, bridge):
        self.cuda = cuda
        self.bridge = bridge
        for name in ("used", "peak_used", "capacity"):
            function = getattr(cuda, "cudasim_" + name)
            function.restype = ctypes.c_uint64
            function.argtypes = [ctypes.c_int]
            setattr(self, name, lambda device=0, f=function: f(device))
        for name in (
            "bridged_ops",
            "launches_without_twin",
            "launches_checked",
            "refused_calls",
            "violation_count",
            "live_events",
        ):
            function = getattr(cuda, "cudasim_" + name)
            function.restype = ctypes.c_long
            setattr(self, name, function)
        for name in ("arena_base", "arena_size", "delta"):
            function = getattr(cuda, "cudasim_" + name)
            function.restype = ctypes.c_uint64
            setattr(self, name, function)
        cuda.cudasim_device_virtual_ns.restype = ctypes.c_int64
        bridge.cudasim_bridge_error.restype = ctypes.c_char_p
        bridge.cudasim_bridge_count.restype = ctypes.c_long
        bridge.cudasim_bridge_storages_outside.restype = ctypes.c_long
        bridge.cudasim_bridge_set_reservation.argtypes = [ctypes.c_uint64] * 2
        bridge.cudasim_bridge_set_reservation.restype = None
        bridge.cudasim_bridge_widened.restype = ctypes.c_long
        self.bridged = bridge.cudasim_bridge_count
        self.widened = bridge.cudasim_bridge_widened
        self.storages_outside = bridge.cudasim_bridge_storages_outside
        self.set_reservation = bridge.cudasim_bridge_set_reservation
        self.operators = 0

    def violations(self):
        texts = []
        for i in range(self.violation_count()):
            text = ctypes.create_string_buffer(1000)
            self.cuda.cudasim_violation(ctypes.c_long(i), text, len(text))
            texts.append(text.value.decode())
        return texts

    def virtual_seconds(self, device=0):
        """When the device's work so far is over, on the virtual clock."""
        return self.cuda.cudasim_device_virtual_ns(device) / 1e9

    def check_raw_launches(self, names):
        """Kernels of modules that need no twin from here on: their pointers
        are checked, and they compute nothing. "all", parts of names separated
        by semicolons, or None."""
        self.cuda.cudasim_check_raw_launches(names and names.encode())

    def clear_violations(self):
        self.cuda.cudasim_clear_violations()


_libraries = {}
_preloaded = False  # torch was imported on top of the libraries
_current = None
_asked = None


def allocator():
    """"native" or "stratalloc": whose memory this process's tensors have.

    The tests of PyTorch's own features run under both, see BUILD.bazel. The
    children of a test have $SIMULATED_CHILD_ALLOCATOR's if that is set.
    """
    return os.environ.get("SIMULATED_ALLOCATOR", "native")


def load_device():
    """The device's libraries, as the environment says. Before torch.

    CUDASIM_NVML=off leaves NVML out, as on a machine whose driver lacks it.
    """
    without = _NVML if os.environ.get("CUDASIM_NVML") == "off" else None
    for name in _NAMES:
        if name not in _libraries and name != without:
            _libraries[name] = ctypes.CDLL(find(name), ctypes.RTLD_GLOBAL)
    # What Triton links its launchers with; it asks ldconfig otherwise.
    os.environ["TRITON_LIBCUDA_PATH"] = os.path.dirname(find(_NAMES[0]))


def preload():
    """Imports torch on top of the libraries; the device stays unknown.

    For a process that forks: each child then calls load(), with a device of its
    own. The settings are read by the first call of the driver, and no import
    makes one.
    """
    global _preloaded
    load_device()
    _preloaded = True
    import torch  # pylint: disable=import-outside-toplevel,unused-import


def install_bridge():
    """The operator bridge, right after torch was imported."""
    global _current
    import torch  # pylint: disable=import-outside-toplevel

    # Sums split over threads depend on how many the machine had to spare, and
    # differ in the last bit between two runs on the CPU itself.
    torch.set_num_threads(1)
    minor = "_".join(torch.__version__.split(".")[:2])
    bridge = ctypes.CDLL(find(f"libcudasim_torch_{minor}.so"))
    device = Simulated(_libraries[_NAMES[0]], bridge)
    device.operators = device.bridge.cudasim_bridge_install()
    if device.operators < 0:
        raise RuntimeError(device.bridge.cudasim_bridge_error().decode())
    _current = device
    if allocator() == "stratalloc":
        import stratalloc  # pylint: disable=import-outside-toplevel

        if "SIMULATED_CONF" in os.environ:
            os.environ["STRATALLOC_CONF"] = os.environ["SIMULATED_CONF"]
        # What eviction launches; kept, as the device's own libraries are.
        twins = "libstratalloc_twins.so"
        _libraries[twins] = ctypes.CDLL(find(twins), ctypes.RTLD_GLOBAL)
        assert stratalloc.enable()
    children = os.environ.pop("SIMULATED_CHILD_ALLOCATOR", None)
    if children is not None:
        os.environ["SIMULATED_ALLOCATOR"] = children
    return device


def installed_allocator():
    """Whose allocator torch has, from the product itself."""
    product = sys.modules.get("stratalloc")
    ours = product is not None and product.is_enabled()
    return "stratalloc" if ours else "native"


def current():
    """This process's Simulated: a child did not call load() itself."""
    return _current


def load(
    memory="512MiB",
    devices=1,
    mode="eager",
    seed=0,
    children=False,
    **settings,
):
    """Simulated device, torch, bridge. Returns a Simulated.

    `memory` None: the card's (CUDASIM_CARD among the settings).

    With children, every Python process started from here on gets a device of
    its own with the same settings before it imports torch: what torch.
    multiprocessing starts by spawn or forkserver, and what subprocess starts.

    Test files that share a process ask for the same device, and get one.
    """
    global _asked
    asked = (memory, devices, mode, seed, children, settings)
    if _asked is not None:
        assert asked == _asked, f"a process has one device, here {_asked}"
        return _current
    assert _preloaded or "torch" not in sys.modules, (
        "load the device before importing torch")
    _asked = asked
    os.environ.pop("CUDASIM_MEMORY", None)
    if memory is not None:
        os.environ["CUDASIM_MEMORY"] = memory
    os.environ.update(
        CUDASIM_DEVICES=str(devices),
        CUDASIM_MODE=mode,
        CUDASIM_SEED=str(seed),
        **settings,
    )
    if children:
        load_in_children()
    load_device()
    import torch  # pylint: disable=import-outside-toplevel,unused-import

    return install_bridge()


def load_in_children():
    """Sets the environment that makes children load the device, see
    every_process/sitecustomize.py. The libraries are found from here, wherever
    a child runs."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.dirname(find(name)) for name in _NAMES]
    # The bridge's name has torch's version in it, known after the import.
    places += os.environ.get("CUDASIM_LIBRARIES", "").split(":")
    places += map(os.path.abspath, _FOLDERS[1:])
    os.environ["CUDASIM_LIBRARIES"] = ":".join(
        dict.fromkeys(filter(None, places))
    )
    os.environ["CUDASIM_EVERY_PROCESS"] = "1"
    paths = [os.path.join(here, "every_process")]
    paths += os.environ.get("PYTHONPATH", "").split(":")
    os.environ["PYTHONPATH"] = ":".join(dict.fromkeys(filter(None, paths)))
