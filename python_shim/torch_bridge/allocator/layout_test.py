# SPDX-License-Identifier: Apache-2.0
"""The torch of the process is the one that the bridge was compiled for."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes
import os

import torch

# Of CUDAAllocator's virtual table, by minor: torch_minor.h.
_SLOTS = {11: 50, 12: 52, 13: 55, 14: 57, 15: 57}


def test_torch_of_the_build_passes_the_check():
    BRIDGE.call("check")


def test_bridge_that_is_loaded_and_not_installed_changes_nothing_in_torch():
    cpp = ctypes.CDLL(
        os.path.abspath("tests/simulator/cudasim/native/libcpp_only.so"))
    name = b"stratalloc_collectives"
    # torch's macro takes the quotes of a name into it.
    assert cpp.memory_callback_known(b'"memory_callback_test"')
    assert BRIDGE.library.stratalloc_torch_is_current() == 0
    assert not cpp.memory_callback_known(name)
    BRIDGE.call("install")
    assert cpp.memory_callback_known(name)


def test_slots_of_torchs_allocator_are_counted():
    native = BRIDGE.library.stratalloc_torch_native
    native.restype = ctypes.c_void_p
    minor = int(torch.__version__.split(".")[1])
    slots = BRIDGE.library.stratalloc_torch_slots(ctypes.c_void_p(native()))
    assert slots == _SLOTS[minor]


def test_object_without_virtual_functions_has_no_slot():
    table = (ctypes.c_void_p * 4)(0, 1, id(torch), 0)
    thing = ctypes.pointer(table)
    assert BRIDGE.library.stratalloc_torch_slots(
        ctypes.cast(ctypes.byref(thing), ctypes.c_void_p)) == 0
