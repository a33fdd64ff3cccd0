# SPDX-License-Identifier: Apache-2.0
"""Rules by tensor: what stays, what comes after it is moved, and where rules
let it leave to."""

import ctypes
import os

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from ruled_tensors import (  # noqa: E402,F401
    MIB, away, biases, clean, enabled, linear, on_device, place, stays, tiers)
import stratalloc  # noqa: E402
from stratalloc._native import core as _core  # noqa: E402
from stratalloc._tiering import rules as _tier_rules  # noqa: E402


def test_a_bias_moved_with_its_module_stays_where_it_was_placed():
    model = linear()
    _tier_rules.apply(model.bias, stay=True)
    model.to("cuda")
    weight, address = place(model.weight), place(model.bias)
    assert stays() == 4096
    expected = model.bias.cpu().clone()
    assert stratalloc.evict() == 4 * MIB
    assert away(model.weight) and on_device(model.bias)
    assert place(model.bias) == address
    assert torch.equal(model.bias.cpu(), expected)
    x = torch.ones(4, 1024, device="cuda")
    assert torch.equal(model(x), nn.functional.linear(
        x, model.weight, model.bias))
    assert place(model.weight) == weight


def test_without_a_rule_the_matrix_takes_its_bias_along():
    model = linear().to("cuda")
    small = nn.Parameter(torch.ones(1024, device="cuda"))
    assert stratalloc.evict() > 4 * MIB
    assert away(model.bias) and away(small)


def test_what_is_there_already_gets_another_place():
    model = linear().to("cuda")
    values = [p.detach().cpu().clone() for p in model.parameters()]
    shared = model.bias.detach()[7:]
    before = place(model.bias)
    _tier_rules.apply(biases(model), stay=True)
    assert place(model.bias) != before
    assert place(shared) == place(model.bias) + 28  # one storage still
    assert stays() == 4096
    address = place(model.bias)
    stratalloc.evict(model)
    assert away(model.weight) and on_device(model.bias)
    _tier_rules.apply(biases(model), stay=True)  # nothing is to be done
    assert place(model.bias) == address
    for parameter, value in zip(model.parameters(), values):
        assert torch.equal(parameter.cpu(), value)
    owners = {row["owner"]: row for row in stratalloc.report()["layers"]
              if row["category"] == "parameter"}
    assert sum(row["live"] for row in owners.values()) == 4 * MIB + 4096


def test_a_rule_is_taken_back():
    model = linear().to("cuda")
    _tier_rules.apply(biases(model), stay=True)
    expected = model.bias.detach().cpu().clone()
    _tier_rules.clear(model)
    assert _tier_rules.rule_of(model.bias) is None
    assert stays() == 0
    stratalloc.evict(model)
    assert away(model.bias) and away(model.weight)
    assert torch.equal(model.bias.cpu(), expected)
    _tier_rules.clear(model)  # again: nothing


def test_moves_keep_the_rule():
    model = nn.Sequential(linear(), nn.BatchNorm1d(1024))
    _tier_rules.apply([p for p in model.parameters() if p.dim() == 1],
                      stay=True)
    _tier_rules.apply(model[1].running_mean, stay=True)
    model.cuda()
    assert stays() == 4 * 4096
    model.half()
    assert stays() == 4 * 2048
    stratalloc.evict()
    assert all(map(on_device, biases(model)))
    assert on_device(model[1].running_mean) and away(model[1].running_var)
    model.cpu()
    assert stays() == 0
    assert _tier_rules.rule_of(model[1].running_mean).stay
    model.float().cuda()
    assert stays() == 4 * 4096


def test_a_rule_that_is_given_during_a_move_is_the_later_word():
    class Changes(nn.Linear):
        def _apply(self, *args, **kwargs):
            super()._apply(*args, **kwargs)
            _tier_rules.apply(self.bias, disk=False)
            return self

    model = nn.Sequential(Changes(1024, 1024))
    _tier_rules.apply(biases(model), stay=True)
    model.cuda()
    assert _tier_rules.rule_of(model[0].bias).disk is False
    stratalloc.evict(model)
    assert not on_device(model[0].bias)


def test_swapped_meta_and_lazy_parameters_keep_the_rule():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = linear()
        _tier_rules.apply(model.bias, stay=True)
        model.cuda()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert stays() == 4096 and _tier_rules.rule_of(model.bias).stay

    with torch.device("meta"):
        empty = linear()
    _tier_rules.apply(empty.bias, stay=True)
    empty.to_empty(device="cuda")
    assert stays() == 2 * 4096

    lazy = nn.LazyLinear(1024, device="cuda")
    _tier_rules.apply(lazy.bias, stay=True)
    lazy(torch.ones(2, 1024, device="cuda"))
    assert stays() == 3 * 4096
    stratalloc.evict()
    assert away(lazy.weight) and on_device(lazy.bias)


def test_tied_parameters_keep_the_rule():
    model = nn.ModuleList([linear(), linear()])
    model[1].bias = model[0].bias
    _tier_rules.apply(model[1].bias, stay=True)
    model.cuda()
    assert model[0].bias is model[1].bias
    assert stays() == 4096


def test_training_with_many_layers():
    torch.manual_seed(0)

    def train(rules):
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(24)))
        if rules:
            _tier_rules.apply(biases(model), stay=True)
        model.cuda()
        if rules:
            addresses = [place(p) for p in biases(model)]
            handles = {address // (2 * MIB) for address in addresses}
            assert len(handles) == 1, "24 biases share a handle"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(3):
            x = torch.ones(8, 256, device="cuda")
            loss = model(x).square().mean()
            loss.backward()
            stratalloc.evict()
            optimizer.step()
            optimizer.zero_grad()
            stratalloc.evict()
            losses.append(loss.item())
        if rules:
            assert [place(p) for p in biases(model)] == addresses
            assert all(map(on_device, biases(model)))
        return losses

    assert train(rules=True) == train(rules=False)


def test_pressure_leaves_what_stays():
    big = nn.ModuleList([nn.Linear(2048, 1024) for _ in range(10)])  # 80 MiB
    _tier_rules.apply([layer.bias for layer in big], stay=True)
    big.cuda()
    x = torch.ones(2, 2048, device="cuda")
    for layer in big:
        layer(x)
        assert all(on_device(one.bias) for one in big)
    assert any(away(one.weight) for one in big)
    with pytest.raises(torch.OutOfMemoryError) as error:
        _tier_rules.apply([layer.weight for layer in big], stay=True)
    assert "a rule keeps" in str(error.value)
    kept = [p for p in big.parameters()
            if (_tier_rules.rule_of(p) or _tier_rules.Rule()).stay]
    assert stays() == sum(p.nbytes for p in kept) > 10 * 4096
    assert sum(p.dim() == 2 for p in kept) < 10


def test_bad_input_changes_nothing():
    model = linear().cuda()
    _tier_rules.apply(model.bias, stay=True)
    for wrong in (3, "bias", None, model.bias.untyped_storage()):
        with pytest.raises(TypeError, match="a rule is for tensors"):
            _tier_rules.apply([model.weight, wrong] if wrong else wrong)
    with pytest.raises(ValueError, match="compress"):
        _tier_rules.apply(model.weight, compress="gzip")
    with pytest.raises(ValueError, match="compress"):
        _tier_rules.apply(model.weight, compress=0)
    with pytest.raises(TypeError):
        _tier_rules.apply(model.weight, True)
    memory = [(place(model.weight), 4 * MIB)]
    for packing in (-1, 4):
        with pytest.raises(ValueError, match="are packed in no way"):
            _core.tier_rule(0, memory, True, True, packing)
    error = _core.Error()
    with pytest.raises(ValueError, match="no tier 3 to evict to"):
        _core.check(_core.lib().stratalloc_evict(
            0, 3, None, 0, None, ctypes.byref(error)), error)
    assert not _core.is_pinned(_core.Pin(memory[0][0], 1, 99))
    assert _tier_rules.rule_of(model.weight) is None
    assert _tier_rules.rule_of(model.bias) == _tier_rules.Rule(stay=True)
    _tier_rules.apply(model.bias)  # another rule in its place
    assert stays() == 0


def test_rules_for_the_tiers_below():
    no_host, no_disk = linear(), linear()
    _tier_rules.apply(no_host.weight, host=False)
    no_disk.cuda()
    _tier_rules.apply(no_disk.weight, disk=False)  # there already
    no_host.cuda()
    place_of = place(no_disk.weight)
    values = [m.weight.detach().cpu() for m in (no_host, no_disk)]
    assert stratalloc.evict([no_host.weight, no_disk.weight]) == 8 * MIB
    assert tiers(no_host.weight) == (0, 0, 4 * MIB)
    assert tiers(no_disk.weight) == (0, 4 * MIB, 0)
    assert stratalloc.evict([no_host.weight, no_disk.weight], to="disk") == 0
    _tier_rules.apply(no_host.weight, disk=False)  # comes back for it
    assert tiers(no_host.weight) == (4 * MIB, 0, 0)
    _tier_rules.apply(no_disk.weight, host=False)  # goes down
    assert tiers(no_disk.weight) == (0, 0, 4 * MIB)
    assert place(no_disk.weight) == place_of
    for module, value in zip((no_host, no_disk), values):
        assert torch.equal(module.weight.cpu(), value)
    _tier_rules.apply(no_host.weight, host=False, disk=False)
    assert stays() == 4 * MIB
    stratalloc.evict(no_host.weight)
    assert tiers(no_host.weight) == (4 * MIB, 0, 0)
    _tier_rules.clear([no_host, no_disk])
    assert stratalloc.evict([no_host.weight, no_disk.weight]) == 8 * MIB
    assert tiers(no_host.weight) == (0, 4 * MIB, 0)
    # Its chunk is true still, and nothing was written.
    assert tiers(no_disk.weight) == (0, 0, 4 * MIB)
    no_host.half()  # no rule, no trace of one
    assert stratalloc.evict(no_host.weight, to="disk") == 2 * MIB


def test_chunks_are_packed_by_rule():
    def stored(**rule):
        model = linear().cuda()
        with torch.no_grad():
            model.weight.copy_(torch.arange(1024, device="cuda"))
        _tier_rules.apply(model.weight, **rule)
        before = stratalloc.report()["tiers"]["disk_stored"]
        assert stratalloc.evict(model.weight, to="disk") == 4 * MIB
        size = stratalloc.report()["tiers"]["disk_stored"] - before
        assert torch.equal(model.weight[7].cpu(), torch.arange(1024.))
        return size

    assert stored() == stored(compress=False) == 4 * MIB
    assert stored(compress="zstd") < 2 * MIB
    assert stored(compress="lz4") < 2 * MIB


def test_evict_to_one_tier():
    model = linear().cuda()
    assert stratalloc.evict(model.weight, to="host") == 4 * MIB
    assert tiers(model.weight) == (0, 4 * MIB, 0)
    assert stratalloc.evict(model.weight, to="host") == 0
    assert stratalloc.evict(model.weight, to="disk") == 4 * MIB
    assert tiers(model.weight) == (0, 0, 4 * MIB)
    stratalloc.restore(model)
    assert stratalloc.evict(to="host") >= 4 * MIB
    assert tiers(model.weight) == (0, 4 * MIB, 0)
    for wrong in ("device", "cpu", 1, ["disk"]):
        with pytest.raises(ValueError, match="'host' or 'disk'"):
            stratalloc.evict(model, to=wrong)


def test_in_the_child_of_a_fork():
    model = linear().cuda()
    child = os.fork()
    if child == 0:
        try:
            _tier_rules.apply(model.bias, stay=True)
        except RuntimeError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_captures():
    """The last one: after it nothing that stayed is moved any more."""
    model = linear().cuda()
    x = torch.ones(2, 1024, device="cuda")
    expected = model(x)
    graph, other = torch.cuda.CUDAGraph(), linear().cuda()
    with torch.cuda.graph(graph):
        out = model(x)
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            _tier_rules.apply(other.weight, stay=True)
    assert _tier_rules.rule_of(other.weight) is None
    address = place(model.bias)
    _tier_rules.apply(model.bias, stay=True)  # the graph has the address
    assert place(model.bias) == address
    graph.replay()
    assert torch.equal(out, expected)

    stays_first = linear()
    _tier_rules.apply(stays_first.bias, stay=True)
    stays_first.cuda()
    address = place(stays_first.bias)
    expected = stays_first(x)
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second):
        out = stays_first(x)
    stratalloc.evict()
    _tier_rules.clear(stays_first.bias)
    assert place(stays_first.bias) == address
    out.zero_()
    second.replay()
    assert torch.equal(out, expected)
