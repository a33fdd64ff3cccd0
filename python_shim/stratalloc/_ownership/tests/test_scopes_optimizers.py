# SPDX-License-Identifier: Apache-2.0
"""Optimizer scopes on CPU tensors, with a scope stack written in Python."""

import pytest
import torch
from fake_stack import FakeStack
from scoped_models import stack  # noqa: F401
from torch import nn

from stratalloc._ownership import modules as _modules
from stratalloc._native import stack as _stack
from stratalloc._native.stack import (GRADIENT, LIFETIME_OPTIMIZER,
                                      OPTIMIZER_STATE, TEMPORARY)

STEP = (OPTIMIZER_STATE, LIFETIME_OPTIMIZER)


def _model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model(torch.ones(1, 4)).sum().backward()
    return model


class Noting(torch.optim.SGD):
    """Notes the top of the stack inside step; raises on request."""

    stack = None
    fail = False

    @torch.no_grad()
    def step(self, closure=None):
        self.seen = self.stack.top()
        if self.fail:
            raise RuntimeError("planted")
        return 42


def test_step_runs_in_the_optimizers_scope(stack):
    optimizer = Noting(_model().parameters(), lr=0.1)
    optimizer.stack = stack
    assert optimizer.step() == 42
    assert optimizer.seen == ("Optimizer.Noting", *STEP)
    assert stack.depth() == 0


def test_step_that_raises_is_balanced(stack):
    optimizer = Noting(_model().parameters(), lr=0.1)
    optimizer.stack = stack
    optimizer.fail = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            optimizer.step()
        assert stack.depth() == 0
    optimizer.fail = False
    assert optimizer.step() == 42


def test_hooks_that_raise_are_balanced(stack):
    optimizer = torch.optim.SGD(_model().parameters(), lr=0.1)

    def fail(*args):
        raise RuntimeError("planted")

    handle = optimizer.register_step_post_hook(fail)
    with pytest.raises(RuntimeError, match="planted"):
        optimizer.step()
    handle.remove()
    optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="planted"):
        optimizer.step()


@pytest.mark.parametrize("foreach", [False, True])
def test_state_and_gradients_belong_to_the_parameters_owner(stack, foreach):
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    optimizer.step()
    weight = model[1].weight
    state = optimizer.state[weight]
    assert stack.label(weight.grad) == ("Sequential.1", GRADIENT)
    assert stack.label(state["exp_avg"]) == ("Sequential.1", OPTIMIZER_STATE)
    assert stack.label(state["exp_avg_sq"]) == ("Sequential.1", OPTIMIZER_STATE)
    # Each state tensor once; gradients are new after every backward.
    del stack.relabelled[:]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert stack.label(state["exp_avg"]) is None
    assert stack.label(weight.grad) == ("Sequential.1", GRADIENT)


def test_loaded_state_is_labelled_at_once(stack):
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    saved = optimizer.state_dict()
    fresh = torch.optim.AdamW(model.parameters())
    for optimizer in (optimizer, fresh):
        del stack.relabelled[:]
        optimizer.load_state_dict(saved)
        moments = optimizer.state[model[0].weight]["exp_avg"]
        assert stack.label(moments) == ("Sequential.0", OPTIMIZER_STATE)


class Making(torch.optim.Optimizer):
    """Makes state in its first step; notes the category of each."""

    def __init__(self, parameters, stack):
        super().__init__(parameters, {})
        self.stack, self.seen = stack, []

    def step(self, closure=None):
        self.seen.append(self.stack.top()[1])
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.state[parameter]["moments"] = [torch.ones(3)]


def test_a_step_makes_state_while_some_is_missing(stack):
    model = _model()
    optimizer = Making(model[0].parameters(), stack)
    optimizer.step()
    optimizer.step()
    optimizer.param_groups[0]["params"] += list(model[1].parameters())
    optimizer.step()
    optimizer.step()
    assert optimizer.seen == [OPTIMIZER_STATE, TEMPORARY] * 2
    moments = optimizer.state[model[1].weight]["moments"][0]
    assert stack.label(moments) == ("Sequential.1", OPTIMIZER_STATE)


def test_an_optimizer_without_state_makes_temporaries(stack):
    optimizer = Noting(_model().parameters(), lr=0.1)
    optimizer.stack = stack
    optimizer.step()
    assert optimizer.seen[1] == OPTIMIZER_STATE, "nobody knows before"
    optimizer.step()
    assert optimizer.seen[1] == TEMPORARY


def test_parameters_of_nobody_cost_one_walk(stack, monkeypatch):
    loose = nn.Parameter(torch.ones(3))
    loose.grad = torch.ones(3)
    optimizer = torch.optim.SGD([loose], lr=0.1)
    owners = _modules._installed.owners
    walks = []
    monkeypatch.setattr(owners, "relabel_all", lambda: walks.append(1))
    optimizer.step()
    optimizer.step()
    assert walks == [1]
    assert stack.label(loose.grad) is None


def test_parameter_behind_registration_is_found_by_the_walk(stack):
    model = _model()
    hidden = nn.Parameter(torch.ones(4, 4))
    hidden.grad = torch.ones(4, 4)
    model[0]._parameters["weight"] = hidden
    torch.optim.SGD([hidden], lr=0.1).step()
    assert stack.label(hidden.grad) == ("Sequential.0", GRADIENT)


def test_numbers_are_unchanged():
    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().sum()
            loss.backward()
            optimizer.step()
        return loss

    plain = train()
    previous = _stack.use(FakeStack())
    _modules.install()
    try:
        assert torch.equal(train(), plain)
    finally:
        _modules.uninstall()
        _stack.use(previous)
    assert torch.equal(train(), plain)


def test_closure_runs_and_lbfgs_steps(stack):
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    tops = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).square().sum()
        tops.append(stack.top()[0])
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None
    assert set(tops) == {"Optimizer.LBFGS"}


def test_schedulers_and_scaler_see_the_step(stack, recwarn):
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    del stack.pushed[:]
    optimizer.step()
    scheduler.step()
    assert not [w for w in recwarn if "lr_scheduler.step" in str(w.message)]
    assert ("Optimizer.SGD", *STEP) in stack.pushed
    assert optimizer.param_groups[0]["lr"] == 0.5
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_scheduler_still_warns_when_step_was_forgotten(stack):
    optimizer = torch.optim.SGD(_model().parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        scheduler.step()


def test_subclass_calling_super_is_balanced(stack):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            return super().step(closure)

    model = _model()
    Twice(model.parameters(), lr=0.1).step()
    assert stack.pushed[-1] == ("Optimizer.Twice", TEMPORARY,
                                LIFETIME_OPTIMIZER), "the second step of two"


def test_classes_used_before_install_are_wrapped_and_restored():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    fake = FakeStack()
    previous = _stack.use(fake)
    raw = torch.optim.Adagrad.step.__wrapped__
    try:
        _modules.install()
        optimizer.step()
        # Adagrad has its state from the beginning.
        assert fake.pushed == [("Optimizer.Adagrad", TEMPORARY,
                                LIFETIME_OPTIMIZER)]
        _modules.uninstall()
        assert torch.optim.Adagrad.step.__wrapped__ is raw
        assert torch.optim.Adagrad.step.hooked is True
        optimizer.step()
        torch.optim.Adagrad(model.parameters()).step()
        assert len(fake.pushed) == 1
    finally:
        _modules.uninstall()
        _stack.use(previous)


def test_pickled_optimizer_steps(stack):
    import pickle

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    pickle.loads(pickle.dumps(optimizer)).step()


def test_compiled_step(stack):
    torch._dynamo.reset()
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model[0].weight.detach().clone()

    @torch.compile(backend="eager")
    def step():
        optimizer.step()

    step()
    expected = before - 0.5 * model[0].weight.grad
    assert torch.allclose(model[0].weight, expected)
    optimizer.step()
    assert stack.depth() == 0
