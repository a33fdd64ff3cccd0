# SPDX-License-Identifier: Apache-2.0
"""copy_ of whoever has a kernel of it for CUDA tensors: guarded, never left out.

torch's own lies at an alias key, so the guard stands before it by itself; any
other is asked of the dispatcher, whoever registered it and in whichever form.
"""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load()

# pylint: disable=wrong-import-position
import pytest
import torch

CALLS = []
LIBRARY = torch.library.Library("aten", "IMPL")


def _register(name):
    """A kernel that copies nothing and remembers that it was called."""
    def kernel(to, source, non_blocking=False):
        CALLS.append((name, to.data_ptr(), source.numel(), non_blocking))
        return to

    LIBRARY.impl("copy_", kernel, "CUDA", allow_override=True)


@pytest.fixture(name="guard", scope="module")
def _guard():
    # The simulated device's kernel has a C++ type; Python's are boxed.
    BRIDGE.call("install_guard")
    BRIDGE.call("install")
    torch.cuda.init()
    BRIDGE.evictable()
    return BRIDGE


def test_the_kernel_that_was_there_first_runs(guard):
    assert guard.guarded("aten::copy_")
    x = torch.zeros(4, device="cuda")
    BRIDGE.core.recording_clear()
    assert x.copy_(torch.arange(4.0)) is x
    assert guard.accesses("aten::copy_") == [(x.data_ptr(), 16, True)]
    assert x.tolist() == [0, 1, 2, 3]


def test_a_kernel_that_was_registered_over_it_runs(guard):
    _register("later")
    guard.call("rescan_guard")
    assert guard.guarded("aten::copy_")
    x = torch.zeros(4, device="cuda")
    BRIDGE.core.recording_clear()
    assert x.copy_(torch.ones(2, 2).view(4), non_blocking=True) is x
    assert guard.accesses("aten::copy_") == [(x.data_ptr(), 16, True)]
    assert CALLS == [("later", x.data_ptr(), 4, True)]


def test_a_kernel_that_was_there_before_the_guard_runs(guard):
    guard.library.stratalloc_torch_remove_guard()
    CALLS.clear()
    _register("before")
    guard.call("install_guard")
    x = torch.zeros(4, device="cuda")
    BRIDGE.core.recording_clear()
    guard.fail("aten::copy_")
    with pytest.raises(RuntimeError, match="checksum"):
        x.copy_(torch.ones(4))
    assert CALLS == []  # restored before anything is launched, or not at all
    guard.heal()
    x.copy_(torch.ones(4))
    assert CALLS == [("before", x.data_ptr(), 4, False)]
