# SPDX-License-Identifier: Apache-2.0
"""Loads the simulated device and the operator bridge into a test's process.

Call load() before anything imports torch. One device per process: the settings
are read once, when libcuda.so.1 is loaded.
"""

import ctypes
import importlib.util
import os
import sys

_NAMES = ("libcuda.so.1", "libcudart.so.13")


def find(name):
    """The library's path: $CUDASIM_LIBRARIES, the build, the package."""
    places = os.environ.get("CUDASIM_LIBRARIES", "").split(":")
    places += ["tests/cudasim", "tests/cudasim/operator_bridge"]
    package = importlib.util.find_spec("stratalloc")
    if package is not None and package.submodule_search_locations:
        for root in package.submodule_search_locations:
            places.append(os.path.join(root, "simulated"))
    for place in places:
        path = os.path.abspath(os.path.join(place, name))
        if place and os.path.exists(path):
            return path
    raise FileNotFoundError(
        f"{name} is in none of {places}; build //tests/cudasim/... or set "
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
        bridge.cudasim_bridge_error.restype = ctypes.c_char_p
        bridge.cudasim_bridge_count.restype = ctypes.c_long
        bridge.cudasim_bridge_storages_outside.restype = ctypes.c_long
        bridge.cudasim_bridge_set_reservation.argtypes = [ctypes.c_uint64] * 2
        bridge.cudasim_bridge_set_reservation.restype = None
        self.bridged = bridge.cudasim_bridge_count
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

    def clear_violations(self):
        self.cuda.cudasim_clear_violations()


def load(memory="512MiB", devices=1, mode="eager", seed=0, **settings):
    """Simulated device, torch, bridge. Returns a Simulated."""
    assert "torch" not in sys.modules, "load the device before importing torch"
    os.environ.update(
        CUDASIM_MEMORY=memory,
        CUDASIM_DEVICES=str(devices),
        CUDASIM_MODE=mode,
        CUDASIM_SEED=str(seed),
        **settings,
    )
    cuda = ctypes.CDLL(find(_NAMES[0]), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(find(_NAMES[1]), ctypes.RTLD_GLOBAL)
    import torch  # pylint: disable=import-outside-toplevel

    # Sums split over threads depend on how many the machine had to spare, and
    # differ in the last bit between two runs on the CPU itself.
    torch.set_num_threads(1)
    minor = "_".join(torch.__version__.split(".")[:2])
    bridge = ctypes.CDLL(find(f"libcudasim_torch_{minor}.so"))
    simulated = Simulated(cuda, bridge)
    simulated.operators = simulated.bridge.cudasim_bridge_install()
    if simulated.operators < 0:
        raise RuntimeError(simulated.bridge.cudasim_bridge_error().decode())
    return simulated
