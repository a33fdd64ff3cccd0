# SPDX-License-Identifier: Apache-2.0
"""What the core tells of a device in one struct: Python and C++ mean the same,
the numbers are torch's, and asking calls no CUDA."""

import ctypes
import pathlib
import re

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._native import core as _core  # noqa: E402
from stratalloc._native import device_metrics as _device_metrics  # noqa: E402
from stratalloc._native import stack as _stack  # noqa: E402

_HEADER = pathlib.Path(__file__).parents[3] / "c_api/device_metrics.h"


def test_the_struct_is_that_of_the_header():
    """Names and order; its size is held by the core at each call."""
    text = re.sub(r"/\*.*?\*/", "", _HEADER.read_text(), flags=re.DOTALL)
    structs = re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.DOTALL)
    assert [name for _, name in structs] == [
        "stratalloc_way", "stratalloc_scope_metrics",
        "stratalloc_device_metrics"]
    for (body, name), ours in zip(structs, (
            _device_metrics.Way, _device_metrics.Scope, _device_metrics.Device)):
        fields = re.findall(r"(\w+)(?:\[\w+\])*(?=[,;])", body)
        assert fields == [one[0] for one in ours._fields_], name


def test_a_package_of_two_versions_is_refused():
    size = ctypes.sizeof(_device_metrics.Device)
    device, error = _device_metrics.Device(size=size - 8), _core.Error()
    named = ctypes.c_int()
    assert _core.lib().stratalloc_metrics(
        0, ctypes.byref(device), None, 0, ctypes.byref(named),
        ctypes.byref(error)) == _core.INVALID_ARGUMENT
    assert f"{size} bytes, not {size - 8}" in error.message.decode()


def test_a_device_that_is_not_there_is_said():
    with pytest.raises(ValueError, match="no device 7"):
        _core.metrics(7)
    assert _core.device_count() == 1


def test_a_device_that_nobody_opened_has_nothing():
    device, scopes = _core.metrics(0, named=5)
    assert (device.opened, device.reserved, scopes) == (0, 0, [])
    assert device.host_budget == 1 << 30, "of the process"


def test_the_numbers_are_torchs_and_cost_no_call_of_cuda():
    with stratalloc.scope("mine", category="buffer"):
        kept = torch.ones(3000, device="cuda")
    with stratalloc.scope("more"):
        gone = torch.ones(1 << 20, device="cuda")
    del gone
    calls = simulate.driver().cudasim_calls
    before = calls(None)
    device, scopes = _core.metrics(0, named=2)
    assert calls(None) == before > 0
    stats = torch.cuda.memory_stats()
    assert device.allocated == stats["allocated_bytes.all.current"] > 0
    assert device.peak_reserved == stats["reserved_bytes.all.peak"]
    assert device.allocations == stats["allocation.all.allocated"] == 2
    assert device.reserved == (
        device.active + device.stranded + device.releasable
        + device.in_private_pools)
    assert [(_core.scope_name(one.scope), one.most, one.tiers[0])
            for one in scopes] == [("more", 1 << 22, 0),
                                   ("mine", 12288, 12288)]
    assert (device.scopes, device.others.tiers[0]) == (2, 0)
    buffer = _stack.CATEGORIES.index("buffer")
    assert list(device.categories[buffer]) == [12288, 0, 0]
    assert device.allocated == kept.nbytes + 288
