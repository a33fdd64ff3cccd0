# SPDX-License-Identifier: Apache-2.0
"""Pins of the program: counted, listed, and ended with their memory."""

import gc

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.foreign_kernels import (  # noqa: E402,F401
    KIB, MIB, away, clean, original_data_ptr, parameter)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import pin_table as _pin_table  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402


def test_pins_are_counted_and_listed():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda()
    size = sum(p.nbytes for p in model.parameters())
    away(model)
    assert stratalloc.pin(model, by="tables") == size
    assert stratalloc.pin({"some": [model[0]]}) > 0
    assert stratalloc.evict() == 0
    pins = stratalloc.report()["pins"]
    assert pins[0] == {"by": "tables", "bytes": size, "storages": 4}
    assert pins[1]["by"].startswith("test_pins.py:")
    assert stratalloc.unpin(model) == size
    assert stratalloc.report()["stays"]["pinned by the program"] >= MIB
    assert stratalloc.unpin(model) == sum(
        p.nbytes for p in model[0].parameters())
    assert stratalloc.unpin(model) == 0
    assert stratalloc.report()["pins"] == []
    assert stratalloc.evict() >= size


def test_pins_of_memory_that_ended_are_not_kept():
    """At one address again and again, and at many that are not pinned again."""
    for _ in range(20):
        stratalloc.pin(parameter())
        let_go()
    assert max(map(len, _pin_table.pins.values()), default=0) <= 1
    kept = parameter(4 * KIB)
    stratalloc.pin(kept)
    for _ in range(4):
        stratalloc.pin([parameter(4 * KIB) for _ in range(60)])
        let_go()
    stratalloc.pin(parameter(4 * KIB))
    assert len(_pin_table.pins) < 3 * 60
    assert sum(row["storages"] for row in _pin_table.listed(0)) <= 2
    assert stratalloc.unpin(kept) == 4 * KIB


def test_pins_end_with_their_memory():
    weight = parameter()
    stratalloc.pin(weight)
    address = original_data_ptr(weight)
    del weight
    gc.collect()
    assert stratalloc.report()["pins"] == []
    other = parameter()
    assert original_data_ptr(other) == address
    assert stratalloc.unpin(other) == 0


def test_pins_of_optimizers_and_gradients():
    model = nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    state = sum(t.nbytes for s in optimizer.state.values()
                for t in s.values() if t.is_cuda)
    assert stratalloc.pin([model, optimizer]) == state + 2 * sum(
        p.nbytes for p in model.parameters())
    stratalloc.evict()
    assert _tiers.residency([model, optimizer])["host"] == 0
    stratalloc.unpin([optimizer, model])


def test_a_pin_that_does_not_fit_pins_nothing():
    weights = [parameter(16 * MIB, seed=i) for i in range(5)]
    with pytest.raises(torch.OutOfMemoryError):
        stratalloc.pin(weights)
    assert stratalloc.report()["pins"] == []
    stratalloc.evict()
    assert stratalloc.report()["allocated"]["current"] == 0
    with pytest.raises(TypeError, match="not object"):
        stratalloc.pin(object())
