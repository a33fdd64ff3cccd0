# SPDX-License-Identifier: Apache-2.0
"""What the bench of attribution measures is there: scopes, nodes, mallocs."""

from stratalloc import simulate

simulate.load("64MiB")

# pylint: disable=wrong-import-position
import pytest
import stratalloc
import torch
from stratalloc._ownership import modules as _modules
from stratalloc._native import _scopes
from stratalloc.bench import attribution
from stratalloc.bench import attribution_lines
from stratalloc.bench import library
from stratalloc.bench import paired


@pytest.fixture(scope="module", autouse=True)
def enabled():
    library.load(torch)
    stratalloc.enable(host_budget="16MiB", disk_budget=0)
    torch.cuda.init()


class Looking(torch.autograd.Function):
    """Notes the scope in which its backward runs."""

    seen = []

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        Looking.seen.append(_scopes.name(_scopes.current()[0]))
        return gradient


def _look(device):
    class Layer(torch.nn.Module):
        def forward(self, value):
            return Looking.apply(value)

    model = torch.nn.Sequential(Layer(), Layer())
    Looking.seen.clear()
    model(torch.ones(1, device=device, requires_grad=True)).backward()
    return Looking.seen


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_node_runs_in_the_scope_of_its_layer_where_nothing_is_allocated(
        device):
    seen = _look(device)
    assert [name.rpartition(".")[2] for name in seen] == ["1", "0"]
    for who in (attribution._NOBODY, attribution._EMPTY):
        attribution._follow_backward(who)
        try:
            assert _look(device) == ["(no scope)"] * 2
        finally:
            attribution._follow_backward(attribution._BRIDGE)


@pytest.mark.parametrize("device", attribution_lines.DEVICES)
def test_a_step_is_counted(device):
    training = attribution._Training(torch, device)
    calls = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, arguments: calls.append(module))
    try:
        training.step()
    finally:
        hook.remove()
    counted = attribution.counts(torch, device)
    assert counted["modules"] + counted["roots"] == len(calls)
    assert counted["leaves"] == len(list(training.model.parameters()))
    assert counted["nodes"] > counted["leaves"]
    # Its gradient, and more: the forward's results.
    assert counted["mallocs"] > counted["leaves"]
    assert _modules.installed()


def test_a_step_that_is_not_followed_is_not_measured():
    _modules.uninstall()
    original = attribution._counted_modules._use
    attribution._counted_modules._use = lambda self, functions: None
    try:
        with pytest.raises(RuntimeError, match="entered no module's scope"):
            attribution.counts(torch, "meta")
    finally:
        attribution._counted_modules._use = original
        _modules.install()


@pytest.mark.long
def test_every_part_is_measured_by_turns():
    for what in attribution._WORKS:
        answer = attribution.measure(torch, what)
        parts = [answer] if "ours" in answer else answer.values()
        for part in parts:
            assert len(part["ours"]) == len(part["without"]) >= 4
            assert min(part["ours"] + part["without"]) > 0
    assert _modules.installed()
    assert _look("cpu") != ["(no scope)"] * 2


def test_what_slows_both_sides_of_a_pair_is_no_difference():
    without = [100.0 + 50 * (i % 7) for i in range(40)]
    assert paired.difference([each + 5 for each in without],
                             without) == (5, 5, 5)
    assert paired.ratio([each * 2 for each in without], without) == (2, 2, 2)


def test_the_interval_is_of_the_median():
    values = [float(i) for i in range(100)]
    middle, low, high = paired.median([*values, 1e9])
    assert middle == 50
    # The 95 % of a median's rank are 2 sqrt(n) / 2 wide, on either side.
    assert 35 < low < 44 and 56 < high < 65
    assert paired.median(values) == paired.median(values)
    with pytest.raises(ValueError):
        paired.difference([1.0, 2.0], [1.0])


def test_the_sum_of_the_parts():
    whole = {"name": "whole", "baseline": 1000.0, "value": 1100.0}
    parts = [{"occurs": {"meta": 2, "cpu": 3}, "shares": {}, "difference": 10,
              "difference_range": [5, 20]},
             {"occurs": {"cpu": 1}, "shares": {}, "difference": 5,
              "difference_range": [-10, 10]},
             {"occurs": {}, "shares": {}, "difference": 99,
              "difference_range": [99, 99]}]
    attribution_lines.give_shares(parts, "cpu", whole["baseline"])
    summed = attribution_lines.summed(parts, whole, "cpu")
    assert summed["shares"]["cpu"] == pytest.approx([0.035, 0.005, 0.07])
    assert summed["difference"] == pytest.approx(35)
    assert summed["difference_range"] == pytest.approx([5, 70])
    assert summed["value"] == pytest.approx(1035)
    assert attribution_lines.share_text(None) == "-"
    assert attribution_lines.share_text(
        summed["shares"]["cpu"]) == "3.50% (0.50..7.00)"
