# SPDX-License-Identifier: Apache-2.0
"""copy_ where nobody but torch has a kernel of it, as on a GPU: no operator
bridge, only the simulated device below torch's own code."""

from python_shim.torch_bridge.testing import bridge as support

_, BRIDGE = support.load(operators=False)

# pylint: disable=wrong-import-position
import pytest
import torch

BRIDGE.call("install_guard")
BRIDGE.call("install")
torch.cuda.init()


@pytest.fixture(autouse=True)
def _clean():
    BRIDGE.evictable()
    BRIDGE.core.recording_clear()
    yield
    BRIDGE.heal()
    assert BRIDGE.open() == 0


def test_both_ways_copy_and_say_what_they_touch():
    assert BRIDGE.guarded("aten::copy_")
    x = torch.empty(4, device="cuda")
    assert x.copy_(torch.arange(4.0)) is x
    assert BRIDGE.accesses("aten::copy_") == [(x.data_ptr(), 16, True)]
    BRIDGE.core.recording_clear()
    here = torch.empty(2)
    assert here.copy_(x[1:3]).tolist() == [1, 2]
    assert BRIDGE.accesses("aten::copy_") == [(x.data_ptr() + 4, 8, False)]


def test_between_two_of_the_device():
    x, y = torch.empty(4, device="cuda"), torch.empty(4, device="cuda")
    x.copy_(torch.arange(4.0))
    BRIDGE.core.recording_clear()
    y.copy_(x)
    assert sorted(BRIDGE.accesses("aten::copy_")) == sorted(
        [(x.data_ptr(), 16, False), (y.data_ptr(), 16, True)]
    )
    assert y.cpu().tolist() == [0, 1, 2, 3]


def test_one_that_cannot_be_restored_does_not_copy():
    x = torch.empty(4, device="cuda")
    x.copy_(torch.zeros(4))
    BRIDGE.fail("aten::copy_")
    with pytest.raises(RuntimeError, match="checksum"):
        x.copy_(torch.ones(4))
    BRIDGE.heal()
    assert x.cpu().tolist() == [0] * 4


def test_while_nothing_is_evictable_it_passes_through():
    BRIDGE.evictable(False)
    before = BRIDGE.enters()
    x = torch.empty(4, device="cuda")
    assert x.copy_(torch.ones(4)).cpu().tolist() == [1] * 4
    assert BRIDGE.enters() == before
