# SPDX-License-Identifier: Apache-2.0
"""copy_ in every direction, layout and type; two devices."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="128MiB", devices=2)

# pylint: disable=wrong-import-position
import itertools

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
PLACES = ["cpu", "cuda:0", "cuda:1"]
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    "offset": lambda t: torch.cat([t[:1], t])[1:],
}


@pytest.mark.parametrize(
    "src,dst", [p for p in itertools.product(PLACES, PLACES)]
)
@pytest.mark.parametrize("layout_src", LAYOUTS)
@pytest.mark.parametrize("layout_dst", LAYOUTS)
def test_every_direction_layout_and_type(src, dst, layout_src, layout_dst):
    values = torch.arange(12.0).view(3, 4) - 4
    for from_type, to_type in itertools.product(DTYPES, DTYPES):
        source = LAYOUTS[layout_src](values.to(from_type).to(src))
        target = LAYOUTS[layout_dst](torch.zeros(3, 4, dtype=to_type).to(dst))
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize("cuda:0")
        torch.cuda.synchronize("cuda:1")
        assert target.device == torch.device(dst)
        assert torch.equal(target.cpu(), values.to(from_type).to(to_type))


def test_broadcast_and_scalar():
    target = torch.zeros(3, 4, device="cuda")
    target.copy_(torch.arange(4.0))
    assert target[2].tolist() == [0, 1, 2, 3]
    target.copy_(torch.tensor(5.0, device="cuda"))
    assert target.sum().item() == 60
    target[1] = 2
    assert target.sum().item() == 48


def test_conjugate_and_negative_views():
    z = torch.tensor([1 + 2j, 3 - 4j])
    lazy = z.cuda().conj()
    assert lazy.is_conj()
    assert torch.equal(lazy.cpu(), z.conj().resolve_conj())
    assert torch.equal(lazy.resolve_conj().cpu(), z.conj().resolve_conj())
    assert torch.equal(lazy.imag.cpu(), -z.imag)
    assert torch.equal((lazy * 2).cpu(), z.conj() * 2)
    target = torch.zeros(2, dtype=torch.complex64, device="cuda")
    target.copy_(lazy)
    assert torch.equal(target.cpu(), z.conj().resolve_conj())


def test_pinned_memory_is_not_reused_before_its_copy_ends():
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned()
    on_device = pinned.to("cuda", non_blocking=True)
    back = torch.empty(1000).pin_memory()
    back.copy_(on_device, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, torch.arange(1000.0))


def test_empty_and_self():
    empty = torch.empty(0, 3, device="cuda")
    assert empty.copy_(torch.empty(0, 3)) is empty
    a = torch.ones(3, device="cuda")
    assert a.copy_(a) is a
    with pytest.raises(RuntimeError, match="must match"):
        a.copy_(torch.ones(4))


def test_host_cannot_read_device_bytes_but_copies_can():
    a = torch.arange(5, device="cuda")
    assert DEVICE.arena_base() <= a.data_ptr()
    assert a.data_ptr() < DEVICE.arena_base() + DEVICE.arena_size()
    with pytest.raises(TypeError, match="cuda:0 device type tensor"):
        a.numpy()
    assert a.cpu().numpy().tolist() == [0, 1, 2, 3, 4]


def test_operators_do_not_mix_devices():
    a, b = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    for mixed in (
        lambda: a + torch.ones(3),
        lambda: a + b,
        lambda: torch.mm(a.view(1, 3), torch.ones(3, 1)),
        lambda: torch.ones(3).add_(a),
        lambda: torch.cat([a, b]),
    ):
        with pytest.raises(RuntimeError, match="on the same device"):
            mixed()
    assert (a + torch.tensor(1.0)).tolist() == [2, 2, 2]
    assert a[torch.tensor([0, 2])].tolist() == [1, 1]
    assert (b + 1).device == torch.device("cuda:1")
