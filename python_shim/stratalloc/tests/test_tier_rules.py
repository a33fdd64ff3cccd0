# SPDX-License-Identifier: Apache-2.0
"""Rules by tensor: what stays, what comes after it is moved, what is left."""

import copy
import ctypes
import gc
import io
import os
import weakref

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc import _core, _ruled  # noqa: E402
from stratalloc import _stack, _tier_rules, _tiers  # noqa: E402

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
