# SPDX-License-Identifier: Apache-2.0
"""The torch of the process is the one that the bridge was compiled for."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import ctypes
import os

import pytest
import torch

MINOR = int(torch.__version__.split(".")[1])
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


def _version(minor):
    """As libtorch_cpu states it, of 2.`minor`."""
    return ctypes.c_uint64(2 << 56 | minor << 48)


def _native():
    native = BRIDGE.library.stratalloc_torch_native
    native.restype = ctypes.c_void_p
    return native()


def _check(minor, entries):
    """Checks an allocator whose virtual table has these entries."""
    table = (ctypes.c_void_p * len(entries))(*entries)
    native = ctypes.c_void_p(ctypes.addressof(table))
    BRIDGE.call("check_as", _version(minor), ctypes.byref(native))


def _entries():
    """Those of the virtual table of torch's own allocator."""
    table = ctypes.c_void_p.from_address(_native()).value
    return list((ctypes.c_void_p * _SLOTS[MINOR]).from_address(table))


def test_table_with_the_slots_of_the_minor_passes():
    _check(MINOR, _entries() + [0])


@pytest.mark.parametrize("minor", [MINOR - 1, MINOR + 1])
def test_torch_of_another_minor_is_refused_with_both_minors(minor):
    with pytest.raises(RuntimeError) as refusal:
        BRIDGE.call("check_as", _version(minor), ctypes.c_void_p(_native()))
    assert str(refusal.value).startswith(
        f"this bridge is for torch 2.{MINOR}, and libtorch_cpu says that it "
        f"is 2.{minor}"), refusal.value


@pytest.mark.parametrize("entries, found", [
    (lambda own: own[:-1] + [0], f"{_SLOTS[MINOR] - 1}"),
    (lambda own: own[:-1] + [id(torch), own[-1]], f"{_SLOTS[MINOR] - 1}"),
    (lambda own: own + own[:1], f"more than {_SLOTS[MINOR]}"),
    (lambda _: [0], "0"),
])  # fmt: skip
def test_table_with_other_slots_is_refused_with_their_number(entries, found):
    with pytest.raises(RuntimeError) as refusal:
        _check(MINOR, entries(_entries()) + [0])
    assert str(refusal.value).startswith(
        f"torch's allocator has {found} virtual functions where torch "
        f"2.{MINOR} has {_SLOTS[MINOR]}"), refusal.value
