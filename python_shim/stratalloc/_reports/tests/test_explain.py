# SPDX-License-Identifier: Apache-2.0
"""fragmentation() and explain(): what is said adds up, and comes true."""

import gc
import random

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.sizes import format_size  # noqa: E402

MIB = 1 << 20
PARTS = ("allocated", "pending", "stranded", "releasable", "in_private_pools")


@pytest.fixture(autouse=True)
def _empty():
    """Nothing of another test lives: a failed one's frames may hold tensors."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()


def look():
    found = stratalloc.fragmentation()
    assert found.reserved == torch.cuda.memory_reserved()
    assert found.allocated == torch.cuda.memory_allocated()
    assert sum(found[part] for part in PARTS) == found.reserved
    assert sum(hole.free for hole in found.holes) == found.stranded
    assert found.separated <= found.stranded
    requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
    assert found.rounding == found.allocated - requested
    return found


def make(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def is_served(size, held):
    try:
        held.append(make(size))
        return True
    except torch.OutOfMemoryError:
        return False


def test_it_adds_up_through_a_training_step():
    class Net(nn.Sequential):
        pass

    model = Net(*[nn.Linear(300, 300) for _ in range(3)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        look()
        loss = model(torch.randn(40, 300, device="cuda")).sum()
        look()
        loss.backward()
        look()
        optimizer.step()
    found = look()
    owners = {hole.owner.split(".")[0] for hole in found.holes}
    assert "Net" in owners
    assert {hole.age is None for hole in found.holes} == {False}
    assert str(found).startswith(f"{format_size(found.reserved)} reserved")
    assert set(found) == set(found.to_dict()) and len(found) == len(list(found))


def test_a_hole_is_named_by_its_oldest_block():
    keep = make(1000)
    make(MIB // 2)
    hole, = look().holes
    assert (hole.blocks, hole.block_bytes) == (1, 1024)
    assert (hole.owner, hole.category) == ("(no scope)", "unknown")
    assert hole.free == hole.bytes - 1024
    del keep


@pytest.mark.parametrize("seeds", [
    1, pytest.param(6, marks=pytest.mark.long)])
def test_what_is_said_comes_true(seeds):
    """Sizes up to the card, evictions included: host memory is plenty."""
    refused, evicted = 0, 0
    for seed in range(seeds):
        draw, held = random.Random(seed), []
        for _ in range(60):
            if held and draw.random() < .35:
                held.pop(draw.randrange(len(held)))
                continue
            size = draw.randrange(1, draw.choice((4096, 4 * MIB, 300 * MIB)))
            said = stratalloc.explain(size)
            assert (said.size, said["fits"]) == (size, said.fits)
            served = is_served(size, held)
            assert served == said.fits, f"seed {seed}: {said}"
            refused += not said.fits
            evicted += said.served_by == "eviction"
    assert refused > 10 * seeds / 6 and evicted > 10 * seeds / 6


def test_what_stays_is_missing_and_freeing_it_helps():
    stay = [make(20 * MIB) for _ in range(10)]
    for each in stay:
        stratalloc.pin(each)
    said = stratalloc.explain(100 * MIB)
    assert not said.fits and said.missing >= 200 * MIB - 156 * MIB
    with pytest.raises(torch.OutOfMemoryError) as refused:
        make(100 * MIB)
    assert said.remedy == "Free as much, or ask for less."
    assert "Pinned tensors hold 200.00 MiB: take pins back" in str(
        refused.value)
    del refused
    for each in stay:
        stratalloc.unpin(each)
    said = stratalloc.explain(100 * MIB)
    assert said.fits and said.served_by in ("eviction", "headroom")
    assert stratalloc.explain("100 MiB") == said
    held = []
    assert is_served(100 * MIB, held)


def test_what_a_pointer_keeps_may_leave_for_want_of_room():
    """It stays only until then, and then it leaves."""
    held = [make(100 * MIB)]
    pointer = held[0].data_ptr()
    said = stratalloc.explain(200 * MIB)
    assert said.fits and said.served_by in ("eviction", "headroom"), str(said)
    assert is_served(200 * MIB, held)
    assert held[0].data_ptr() == pointer


def test_a_fraction_that_is_too_low_is_the_remedy():
    keep = make(40 * MIB)
    stratalloc.pin(keep)
    torch.cuda.set_per_process_memory_fraction(.25)
    try:
        said = stratalloc.explain(40 * MIB)
        assert not said.fits and said.limit_helps
        with pytest.raises(torch.OutOfMemoryError) as refused:
            make(40 * MIB)
        assert ("raise it with torch.cuda.set_per_process_memory_fraction()"
                in str(refused.value))
        torch.cuda.set_per_process_memory_fraction(
            .25 + said.missing / (256 * MIB))
        held = []
        assert is_served(40 * MIB, held)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        stratalloc.unpin(keep)


def test_small_blocks_that_keep_handles_are_named():
    """Every handle but for a part of it is free, if these blocks went."""
    large, small = [], []
    handle = stratalloc.stats()["handles"]["large_handle_bytes"]
    part = MIB + 512
    while handle * 4 * (len(large) + 1) < 240 * MIB:
        large.append(make(4 * handle - part))
        small.append(make(part))
    for each in small:
        stratalloc.pin(each)
    large.clear()
    free = look()
    size = 256 * MIB - 3 * handle
    said = stratalloc.explain(size)
    assert free.stranded > 0 and not said.fits
    assert 0 < len(said.frees) < len(small)
    assert sum(block["bytes"] for block in said.frees) < said.missing
    addresses = {block["address"] for block in said.frees}
    small[:] = [each for each in small if each.data_ptr() not in addresses]
    held = []
    assert is_served(size, held), str(stratalloc.explain(size))


@pytest.mark.parametrize("size", (0, -1, "0", "many", "4 XiB", "", 1 << 62,
                                  True, 1.5, None, b"1MiB"))
def test_sizes_that_are_none(size):
    make(512)
    with pytest.raises(ValueError, match="stratalloc.explain: size=") as refused:
        stratalloc.explain(size)
    assert str(refused.value)


def test_a_device_that_is_not_there():
    make(512)
    for function in (stratalloc.fragmentation,
                     lambda device: stratalloc.explain(1, device)):
        with pytest.raises((RuntimeError, AssertionError, ValueError)):
            function(77)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
