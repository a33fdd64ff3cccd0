# SPDX-License-Identifier: Apache-2.0
"""torch.compile on the simulated device: inductor generates Triton kernels,
compiles, tunes and launches them, forward and backward. Their pointers are
checked; they compute nothing."""

from tests.simulator.cudasim.operator_bridge import compiling

DEVICE = compiling.load("256MiB", CUDASIM_CHECK_RAW_LAUNCHES="triton_")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch._inductor import config

# From 2.13 on all but the first launch of a kernel.
_FAST = "use_fast_triton_launcher"
HAS_FAST_LAUNCHER = hasattr(config, _FAST)


@pytest.mark.long
def test_a_step_of_a_compiled_model_launches_checked_kernels():
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).cuda()
    compiled = torch.compile(model)
    x = torch.randn(8, 16, device="cuda")
    for _ in range(2):
        compiled(x).square().sum().backward()
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0
    # At least the forward's and the backward's fused kernels, twice.
    settled = DEVICE.launches_checked()
    assert settled >= 4
    # Once tuned, a step launches each of its kernels once.
    compiled(x).square().sum().backward()
    assert 2 <= DEVICE.launches_checked() - settled <= 10


def test_memory_that_has_gone_is_refused_by_the_launcher():
    """It asks cuPointerGetAttribute for each tensor's address first."""
    launch = _launch_with_memory_that_has_gone(fast=False)
    launched = DEVICE.launches_checked()
    with pytest.raises(RuntimeError, match="invalid argument"):
        launch()
    assert DEVICE.launches_checked() == launched
    assert DEVICE.violations() == []


@pytest.mark.skipif(
    not HAS_FAST_LAUNCHER, reason="each launcher of 2.11 and 2.12 asks"
)
def test_memory_that_has_gone_is_a_violation_of_the_fast_launcher():
    launch = _launch_with_memory_that_has_gone(fast=True)
    launched = DEVICE.launches_checked()
    launch()
    assert DEVICE.launches_checked() == launched + 1
    (violation,) = DEVICE.violations()
    DEVICE.clear_violations()
    assert "use-after-unmap: kernel triton_" in violation


def _launch_with_memory_that_has_gone(fast):
    """Launches a kernel that was launched before, with memory unmapped since.

    `fast`: by Inductor's launcher that does not ask for an address.
    """
    torch._dynamo.reset()
    settings = {_FAST: fast} if HAS_FAST_LAUNCHER else {}
    compiled = torch.compile(lambda a, b: torch.relu(a + b) * 2)
    # Large enough for segments of their own, which can go.
    a, b = (torch.ones(6 << 20, device="cuda") for _ in range(2))
    with config.patch(settings):
        compiled(a, b)
    alias = torch.empty(0, device="cuda").set_(
        _storage_at(b), 0, b.shape, b.stride()
    )
    compiled(a, alias)
    del a, b
    torch.cuda.empty_cache()
    return lambda: compiled(torch.ones(6 << 20, device="cuda"), alias)


def _storage_at(tensor):
    """A storage of the same memory that keeps nothing alive."""
    return torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, tensor.nbytes
    )
