# SPDX-License-Identifier: Apache-2.0
"""Memory of tensors with rules: other places, streams that were recorded, pins,
and what dead tensors leave."""

import copy
import gc
import io
import weakref

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402

from ruled_tensors import (  # noqa: E402,F401
    MIB, away, clean, enabled, linear, on_device, place, stays, tiers)
import stratalloc  # noqa: E402
from stratalloc._tiering import ruled as _ruled  # noqa: E402
from stratalloc._native import core as _core  # noqa: E402
from stratalloc._tiering import rules as _tier_rules  # noqa: E402
from stratalloc._native import stack as _stack  # noqa: E402


def test_dead_tensors_leave_nothing():
    before = len(_ruled._rules)
    model = linear()
    _tier_rules.apply(model, stay=True)
    assert len(_ruled._rules) == before + 2
    model.cuda()
    dies = weakref.ref(model.weight)
    twin = copy.deepcopy(model)
    assert _tier_rules.rule_of(twin.weight) is None
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == {"weight", "bias"}
    del model, twin
    gc.collect()
    assert dies() is None
    assert len(_ruled._rules) == before
    assert stays() == 0


def test_addresses_that_somebody_holds_do_not_change():
    model = linear().cuda()
    stratalloc.pin(model.bias)
    address = place(model.bias)
    _tier_rules.apply(model.bias, stay=True)
    assert stratalloc.unpin(model.bias) == 4096
    assert stratalloc.unpin(model.bias) == 0  # the rule's is not the program's
    assert place(model.bias) == address
    assert [row["by"] for row in stratalloc.report()["pins"]] == ["a tier rule"]
    stratalloc.evict()
    assert on_device(model.bias)
    _tier_rules.clear(model.bias)
    assert stratalloc.report()["pins"] == []
    stratalloc.evict()
    assert away(model.bias)


def staying_ones():
    """4 MiB of the class of what stays, so out of what such memory leaves."""
    native = _stack.functions()
    scope, category, _ = native.current()
    below = native.depth()
    native.push(scope, category, _stack.LIFETIME_STAYING)
    try:
        return torch.ones(MIB, device="cuda")
    finally:
        native.leave(below)


def test_another_place_is_of_the_same_stream():
    side, before = torch.cuda.Stream(), simulate.violations()
    tensor = torch.ones(MIB, device="cuda")
    with torch.cuda.stream(side):
        _tier_rules.apply(tensor, stay=True)
    address = place(tensor)
    assert [segment["stream"] for segment in torch.cuda.memory_snapshot()
            if any(block["address"] == address
                   for block in segment["blocks"])] == [0]
    x = torch.zeros(MIB, device="cuda")
    for _ in range(10):
        x = x + tensor
    del tensor
    with torch.cuda.stream(side):
        assert place(staying_ones()) != address
    torch.cuda.synchronize()
    assert simulate.violations() == before

    with torch.cuda.stream(side):
        of_side = torch.ones(MIB, device="cuda")
    _tier_rules.apply(of_side, stay=True)
    assert _core.placement(place(of_side)).stream == side.cuda_stream
    _tier_rules.clear(of_side)
    assert _core.placement(place(of_side)).stream == side.cuda_stream


def test_another_place_has_the_streams_that_were_recorded():
    side, before = torch.cuda.Stream(), simulate.violations()
    tensor = torch.ones(MIB, device="cuda")
    tensor.record_stream(side)
    _tier_rules.apply(tensor, stay=True)
    with torch.cuda.stream(side):
        x = torch.zeros(MIB, device="cuda")
        for _ in range(10):
            x = x + tensor
    del tensor
    staying_ones()  # of the default stream, as the tensor was
    torch.cuda.synchronize()
    assert simulate.violations() == before
    with pytest.raises(RuntimeError, match="blocks of one device"):
        _core.record_streams_of(place(x), 4096)


def test_a_rule_ends_with_a_tensor_whose_streams_were_recorded():
    tensor = torch.ones(MIB, device="cuda")
    _tier_rules.apply(tensor, host=False)
    tensor.record_stream(torch.cuda.Stream())
    address = place(tensor)
    del tensor
    torch.cuda.synchronize()
    heir = torch.ones(MIB, device="cuda")
    assert place(heir) == address
    assert stratalloc.evict(heir) == 4 * MIB
    assert tiers(heir) == (0, 4 * MIB, 0)


def test_a_dead_tensors_pin_is_taken_back():
    tensor = torch.ones(MIB, device="cuda")
    same = tensor.data  # and not a view, which would keep the tensor
    stratalloc.pin(tensor)
    _tier_rules.apply(tensor, stay=True)
    stratalloc.unpin(tensor)
    del tensor
    gc.collect()
    assert stratalloc.report()["pins"] != []  # until somebody gives a rule
    _tier_rules.clear([])
    assert stratalloc.report()["pins"] == []
    assert stratalloc.evict(same) == 4 * MIB


def test_a_rule_that_fails_half_way_leaves_nothing(monkeypatch):
    class Both(torch.Tensor):  # of two memories

        @staticmethod
        def __new__(cls, one, other):
            return torch.Tensor._make_wrapper_subclass(
                cls, one.shape, device=one.device)

        def __init__(self, one, other):
            self.one, self.other = one, other

        def __tensor_flatten__(self):
            return ["one", "other"], None

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError(str(function))

    held, full, free = (torch.ones(MIB, device="cuda") for _ in range(3))
    stratalloc.pin(held)

    def refuses(tensor, lifetime):
        if tensor is full:
            raise torch.OutOfMemoryError("no room")
        real(tensor, lifetime)

    real = _ruled._replace
    monkeypatch.setattr(_ruled, "_replace", refuses)
    for first in (held, free):
        both = Both(first, full)
        if first is free:
            _tier_rules.apply(both, host=False)
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            _tier_rules.apply(both, stay=True)
        assert not (_tier_rules.rule_of(both) or _tier_rules.Rule()).stay
    stratalloc.unpin(held)
    assert stays() == 0
    assert stratalloc.report()["pins"] == []
    assert stratalloc.evict([held, full, free]) == 12 * MIB
    assert tiers(held) == (0, 4 * MIB, 0)
    assert tiers(free) == (0, 0, 4 * MIB)  # it had that rule
