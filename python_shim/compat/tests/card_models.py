# SPDX-License-Identifier: Apache-2.0
"""Models on the simulated card whose layers leave one by one.

Import it after the device; `opened` and `nothing_left` are fixtures that run by
themselves.
"""

import gc

import pytest
import torch
from torch import nn

import stratalloc
from managed_models import left_behind
from stratalloc._tiering import tiers as _tiers

MIB = 1 << 20
WEIGHT = 4 * MIB  # of a layer below: two handles


@pytest.fixture(scope="module", autouse=True)
def opened():
    """The import enabled us; what a first use opens is open."""
    assert stratalloc.is_enabled()
    model = layers(2, device="cuda")
    model(torch.ones(1, 1024, device="cuda"))
    stratalloc.evict()
    stratalloc.evict(model, to="disk")


@pytest.fixture(autouse=True)
def nothing_left(opened):
    # Layers begin at a handle where nothing else is: each leaves alone.
    gc.collect()
    torch.cuda.empty_cache()
    before = left_behind()
    yield
    if left_behind() != before:
        gc.collect()
    assert left_behind() == before


def layers(count, width=1024, device=None):
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(1024, width) for _ in range(count)]
                         ).to(device)


def resident(model):
    """Which of its layers have their weight on the device."""
    return [i for i, layer in enumerate(model)
            if _tiers.residency(layer.weight)["device"] == WEIGHT]
