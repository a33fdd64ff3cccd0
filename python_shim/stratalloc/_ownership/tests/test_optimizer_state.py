# SPDX-License-Identifier: Apache-2.0
"""What of an optimizer's step is state and what was temporary: at the device's
peak inside of the first step, and after steps that replace what they keep.

Sizes are multiples of 512 bytes, but for scalars, which take that much.
"""

import gc
import inspect

import pytest

from stratalloc import simulate

simulate.load("128MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import rows, sums, total  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

SIZE, LAYERS = 64, 4
WEIGHT = SIZE * SIZE * 4
MODEL = LAYERS * WEIGHT


def net(name, layers=LAYERS):
    return type(name, (nn.Sequential,), {})(
        *[nn.Linear(SIZE, SIZE, bias=False)
          for _ in range(layers)]).to("cuda")


def backward(model):
    model(torch.ones(8, SIZE, device="cuda")).sum().backward()


def of(category, at="now"):
    return sum(row.bytes for row in stratalloc.holders(at=at).rows
               if row.category == category)


def first_step(optimizer, *arguments):
    """{category: bytes more at the step's peak than before it}."""
    categories = ("optimizer_state", "temporary")
    before = {what: of(what) for what in categories}
    torch.cuda.reset_peak_memory_stats()
    optimizer.step(*arguments)
    return {what: of(what, "peak") - before[what] for what in categories}


# ---- the first step ---------------------------------------------------------

# Those that make their state in `_init_group`, or have none.
KNOWN = {
    "Adadelta": {}, "Adafactor": {}, "Adam": {}, "AdamW": {}, "Adamax": {},
    "ASGD": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {}, "Rprop": {},
    "SGD": {"weight_decay": .1}, "Muon": {}, "Adagrad": {}}
WAYS = {"foreach": {"foreach": True}, "single": {"foreach": False},
        "fused": {"fused": True},
        "capturable": {"foreach": True, "capturable": True}}


def both():
    """Every optimizer in every way that it has."""
    for name in KNOWN:
        takes = inspect.signature(getattr(torch.optim, name)).parameters
        for way, options in WAYS.items():
            on_cpu_alone = (name, way) == ("Adagrad", "fused")
            if options.keys() <= takes.keys() and not on_cpu_alone:
                yield name, way
    yield "Muon", "plain"


def test_every_optimizer_of_torch_is_here():
    shipped = {name for name, cls in vars(torch.optim).items()
               if isinstance(cls, type) and hasattr(cls, "_init_group")}
    assert set(KNOWN) == shipped


@pytest.mark.parametrize("name, way", both())
def test_what_the_first_step_makes_for_itself_is_temporary(name, way):
    model = net(f"First{name}{way}")
    optimizer = getattr(torch.optim, name)(
        model.parameters(), **KNOWN[name], **WAYS.get(way, {}))
    before = total(f"First{name}{way}", "optimizer_state")
    backward(model)
    at_peak = first_step(optimizer)
    state = total(f"First{name}{way}", "optimizer_state") - before
    assert at_peak["optimizer_state"] == state
    if way == "foreach" and name not in ("Adagrad", "Adafactor"):
        assert at_peak["temporary"] >= MODEL, "of each gradient, at once"
    assert rows("Optimizer." + name) == {}


def test_momentum_that_the_computation_makes():
    """SGD's _init_group looks it up; the computation makes it."""
    model = net("Momentum")
    optimizer = torch.optim.SGD(model.parameters(), momentum=.9)
    backward(model)
    assert first_step(optimizer)["optimizer_state"] == MODEL
    assert total("Momentum", "optimizer_state") == MODEL


def test_a_group_that_is_added_later():
    model = net("Later", layers=2 * LAYERS)
    optimizer = torch.optim.AdamW(model[:LAYERS].parameters(), foreach=True,
                                  capturable=True)
    backward(model)
    optimizer.step()
    assert total("Later", "optimizer_state") == 2 * MODEL + LAYERS * 512
    optimizer.add_param_group({"params": list(model[LAYERS:].parameters())})
    at_peak = first_step(optimizer)
    assert at_peak["optimizer_state"] == 2 * MODEL + LAYERS * 512
    assert at_peak["temporary"] >= MODEL
    assert total("Later", "optimizer_state") == 2 * (2 * MODEL + LAYERS * 512)


def test_state_that_was_loaded():
    model = net("Loaded")
    backward(model)
    saved = torch.optim.AdamW(model.parameters())
    saved.step()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    optimizer.load_state_dict(saved.state_dict())
    del saved
    gc.collect()
    assert total("Loaded", "optimizer_state") == 2 * MODEL
    at_peak = first_step(optimizer)
    assert at_peak["optimizer_state"] == 0
    assert at_peak["temporary"] >= MODEL


class Inline(torch.optim.AdamW):
    """Inherits `_init_group` and does not call it."""

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["moments"] = parameter.clone()
        return loss


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("cls", [Inline, torch.optim.LBFGS])
def test_what_a_closure_makes_is_no_state(cls, gradients):
    """gradients: some are there before the closure makes them anew."""
    model = net("Closing" + cls.__name__)
    if gradients:
        backward(model)
    optimizer = cls(model.parameters())
    seen = []

    def closure():
        optimizer.zero_grad()
        backward(model)
        kept = torch.ones(SIZE, SIZE, device="cuda", requires_grad=True)
        seen.append(rows("Optimizer." + cls.__name__)["", "temporary"])
        assert seen[-1] >= kept.nbytes
        return kept.sum()

    made = first_step(optimizer, closure)
    assert made["optimizer_state"] >= MODEL
    assert total("Closing" + cls.__name__, "optimizer_state") >= MODEL
    assert seen


def test_what_a_step_replaced_for_itself_is_put_back():
    model = net("Back")
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model)
    optimizer.step()
    assert "_init_group" not in optimizer.__dict__
    mine = optimizer._init_group
    optimizer.state.clear()
    optimizer._init_group = mine
    optimizer.step()
    assert optimizer.__dict__["_init_group"] is mine

    def fails(*arguments):
        raise KeyError("planted")

    optimizer.state.clear()
    optimizer._init_group = fails
    with pytest.raises(KeyError, match="planted"):
        optimizer.step()
    assert optimizer.__dict__["_init_group"] is fails


# ---- state that is replaced -------------------------------------------------

class Replacing(torch.optim.Optimizer):
    """Keeps what it computes, not where it was; `clear` lets go of it before."""

    def __init__(self, parameters, clear=False):
        super().__init__(parameters, {})
        self.clear = clear

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if self.clear:
                state.clear()
            old = state.pop("m", None)
            state["m"] = (torch.zeros_like(parameter) if old is None
                          else .9 * old + parameter.grad)
            del old


@pytest.mark.parametrize("clear", [False, True])
def test_state_that_each_step_replaces(clear):
    """clear: the new one may be the same object at the same address."""
    name = f"Replaced{clear}"
    model = net(name)
    optimizer = Replacing(model.parameters(), clear)
    for _ in range(4):
        backward(model)
        optimizer.step()
        # Not rows of a report that looks for what is labelled late.
        found = {(row["owner"], row["category"]): row["live"]
                 for row in stratalloc._native.core.report(0)["layers"]
                 if row["live"]}
        assert all(found[f"{name}.{i}", "optimizer_state"] == WEIGHT
                   for i in range(LAYERS))
        assert not [key for key in found if key[0] == "Optimizer.Replacing"]


def test_state_of_nobody_costs_no_look_at_all_of_it(monkeypatch):
    model = net("BesideNobody")
    loose = nn.Parameter(torch.ones(SIZE, SIZE, device="cuda"))
    optimizer = torch.optim.AdamW([*model.parameters(), loose])

    def step():
        loose.grad = torch.ones_like(loose)
        backward(model)
        optimizer.step()

    step()
    step()
    looks = []
    monkeypatch.setattr(stratalloc._ownership.modules._installed.owners,
                        "relabel_state", lambda *_: looks.append(1))
    step()
    assert not looks
    assert rows("Optimizer.AdamW")["", "optimizer_state"] >= 2 * WEIGHT


def test_state_of_nobody_that_goes_as_other_state_is_replaced():
    model = net("BesideGone", layers=1)
    loose = nn.Parameter(torch.ones(SIZE, SIZE, device="cuda"))
    optimizer = Replacing([loose, *model.parameters()])
    loose.grad = torch.ones_like(loose)
    for _ in range(3):
        backward(model)
        optimizer.step()
    assert sum(rows("Optimizer.Replacing").values()) == WEIGHT
    del optimizer.param_groups[0]["params"][0], optimizer.state[loose]
    for _ in range(3):
        backward(model)
        optimizer.step()
        found = {(row["owner"], row["category"]): row["live"]
                 for row in stratalloc._native.core.report(0)["layers"]
                 if row["live"]}
        assert found["BesideGone.0", "optimizer_state"] == WEIGHT
        assert not [key for key in found if key[0] == "Optimizer.Replacing"]
