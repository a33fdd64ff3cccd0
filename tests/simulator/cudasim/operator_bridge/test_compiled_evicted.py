# SPDX-License-Identifier: Apache-2.0
"""Triton kernels and compiled models while another thread evicts everything.

Launched with their pointers checked, as kernels that no operator shows; they
compute nothing, so what is compared is who was asked to be there: no violation,
no refused launch, and a region that cannot fit is refused before it begins.
"""

import threading

from tests.simulator.cudasim.operator_bridge import compiling

DEVICE = compiling.load_ours("192MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
import triton
from triton import language as tl

from python_shim.testing.evicting import evicting
import stratalloc
from stratalloc._tiering import tiers as _tiers
from stratalloc._hooks import compiled as _compiled

SEEDS = 100


@triton.jit
def add_kernel(x, y, out, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    total = tl.load(x + at, inside) + tl.load(y + at, inside)
    tl.store(out + at, total, inside)


@pytest.fixture(autouse=True)
def clean():
    yield
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0


def weights(count, numel=1 << 22):
    """Parameters of 16 MiB each, which may leave: of those that Triton asks for
    their addresses the newest one stays, an eighth of the device."""
    return torch.nn.ParameterList(
        torch.nn.Parameter(torch.ones(numel, device="cuda"))
        for _ in range(count)
    )


def test_a_triton_kernel_finds_its_operands():
    x, y, out = weights(3)
    add_kernel[(4,)](x, y, out, 1000, block=256)
    before = DEVICE.launches_checked()
    with evicting():
        for seed in range(SEEDS):
            DEVICE.cuda.cudasim_set_seed(seed)
            add_kernel[(4,)](x, y, out, 1000, block=256)
    assert DEVICE.launches_checked() == before + SEEDS
    stratalloc.evict()
    # No longer than the launch, but for the newest address that was asked for.
    assert _tiers.residency([x, y, out])["device"] <= 16 << 20


class AskedLast:
    """A tensor for whose address Triton asks while everything leaves.

    By then it has asked for those of the operands before it, and launches next.
    """

    def __init__(self, tensor):
        self.tensor = tensor
        self.dtype = tensor.dtype

    def data_ptr(self):
        evicts = threading.Thread(target=stratalloc.evict)
        evicts.start()
        evicts.join()
        return self.tensor.data_ptr()


def test_operands_stay_from_the_first_address_to_the_launch():
    # Asking for the second address lets the first one go: both together are
    # more than an eighth of the device.
    x, y = weights(2)
    out = AskedLast(torch.empty(1000, device="cuda"))
    before = DEVICE.launches_checked()
    add_kernel[(4,)](x, y, out, 1000, block=256)
    torch.cuda.synchronize()
    assert DEVICE.launches_checked() == before + 1
    assert DEVICE.violations() == []


def test_a_triton_kernel_that_cannot_fit_is_refused_before_it_is_launched():
    x, y, out = weights(3, numel=20 << 20)  # 80 MiB each
    before = DEVICE.launches_checked()
    with pytest.raises(
        torch.OutOfMemoryError, match=r"a Triton kernel needs 240\.00 MiB"
    ):
        add_kernel[(4,)](x, y, out, 1000, block=256)
    assert DEVICE.launches_checked() == before


def mlp(layers, width=512):
    return torch.nn.Sequential(
        *(
            layer
            for _ in range(layers)
            for layer in (torch.nn.Linear(width, width), torch.nn.GELU())
        )
    ).cuda()


@pytest.mark.parametrize(
    "layers, seeds",
    [(2, range(10)), pytest.param(4, range(SEEDS), marks=pytest.mark.long)],
)
def test_a_compiled_model_trains_with_everything_leaving(layers, seeds):
    torch._dynamo.reset()
    model = mlp(layers)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    x = torch.ones(8, 512, device="cuda")
    compiled(x).sum().backward()
    launched = DEVICE.launches_checked()
    with evicting():
        for seed in seeds:
            DEVICE.cuda.cudasim_set_seed(seed)
            compiled(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert DEVICE.launches_checked() >= launched + 2 * len(seeds)


def test_a_region_that_cannot_fit_is_refused_and_fits_per_layer():
    torch._dynamo.reset()
    model = mlp(layers=4, width=3840)  # 56 MiB each, 225 in all
    x = torch.ones(2, 3840, device="cuda")
    launched = DEVICE.launches_checked()
    with torch.no_grad():
        with pytest.raises(
            torch.OutOfMemoryError, match=r"a compiled graph needs 2\d\d\.\d+ MiB"
        ):
            torch.compile(model)(x)
        assert DEVICE.launches_checked() == launched
        torch._dynamo.reset()
        assert stratalloc.compile_per_layer(model) is model
        model(x)
    assert DEVICE.launches_checked() > launched


def test_without_the_hooks_a_launch_is_refused():
    """What the hooks are for: Triton asks the driver for the address."""
    x, y, out = weights(3)
    add_kernel[(4,)](x, y, out, 1000, block=256)
    torch.cuda.synchronize()
    _compiled.uninstall()
    try:
        from stratalloc._hooks import exports as _exports

        _exports.uninstall()  # else data_ptr() brings them back
        stratalloc.evict()
        with pytest.raises(ValueError, match="cannot be accessed from Triton"):
            add_kernel[(4,)](x, y, out, 1000, block=256)
    finally:
        _exports.install()
        _compiled.install()
    add_kernel[(4,)](x, y, out, 1000, block=256)
