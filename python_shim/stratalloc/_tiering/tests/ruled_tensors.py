# SPDX-License-Identifier: Apache-2.0
"""Tensors with rules, where they are and what stays, for tests of tier rules.

Import it after the simulated device; `enabled` and `clean` are fixtures that
run by themselves.
"""

import gc

import pytest
import torch
from torch import nn

import stratalloc
from stratalloc._tiering import rules as _tier_rules, tiers as _tiers

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def enabled():
    """Ours, with both tiers, once it was not."""
    for call in (_tier_rules.apply, _tier_rules.clear):
        with pytest.raises(RuntimeError, match="not enabled"):
            call(torch.ones(1))
    assert stratalloc.enable(host_budget="64MiB", disk_budget="256MiB")
    torch.cuda.init()


@pytest.fixture(autouse=True)
def clean():
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def biases(module):
    return [p for p in module.parameters() if p.dim() == 1]


def on_device(tensor):
    found = _tiers.residency(tensor)
    assert sum(found.values()) == tensor.untyped_storage().nbytes(), found
    return found["device"] == sum(found.values())


def place(tensor):
    """Its address, without giving it away as data_ptr() does."""
    return (tensor.untyped_storage().data_ptr() +
            tensor.storage_offset() * tensor.element_size())


def tiers(tensor):
    return tuple(_tiers.residency(tensor).values())


def away(tensor):
    return tiers(tensor)[0] == 0


def stays():
    report = stratalloc.report()
    assert sum(report["stays"].values()) == report["allocated"]["current"]
    return report["stays"].get("kept by a rule", 0)


def linear():
    return nn.Linear(1024, 1024)
