# SPDX-License-Identifier: Apache-2.0
"""Module scopes on CPU tensors: which tensor belongs to which module, from
construction over moves to loading.
"""

import inspect

import pytest
import torch
from scoped_models import CONSTRUCT
from scoped_models import Block
from scoped_models import Model
from scoped_models import stack  # noqa: F401
from torch import nn

from stratalloc._ownership import modules as _modules
from stratalloc._native.stack import (BUFFER, GRADIENT, LIFETIME_PERSISTENT,
                                      PARAMETER)


# ---- construction ---------------------------------------------------------


def test_parameters_are_allocated_under_the_class_scope(stack):
    seen = []

    class Own(nn.Module):
        def __init__(self, size):
            super().__init__()
            seen.append(stack.top())
            self.linear = nn.Linear(size, size)
            seen.append(stack.top())

    Own(3)
    assert seen == [("Own", *CONSTRUCT), ("Own", *CONSTRUCT)]
    assert ("Linear", *CONSTRUCT) in stack.pushed
    # The Linear's own frame was pushed once, inside Own's.
    assert [path for path, *_ in stack.pushed] == ["Own", "Linear"]


def test_super_init_pushes_once(stack):
    class Base(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)

    class Derived(Base):
        def __init__(self):
            super().__init__()

    Derived()
    assert [path for path, *_ in stack.pushed] == ["Derived"]


def test_init_that_raises_leaves_nothing(stack):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        Broken()
    assert stack.depth() == 0
    Block()
    assert stack.depth() == 0


def test_constructed_parameters_are_relabelled_to_the_path(stack):
    model = Model()
    weight = model.layers[0].linear.weight
    assert stack.label(weight) == ("Linear", PARAMETER)
    assert stack.label(model.layers[0].scale) == ("Block", BUFFER)
    model(torch.ones(1, 4))
    assert stack.label(weight) == ("Model.layers.0.linear", PARAMETER)
    assert stack.label(model.layers[0].scale) == ("Model.layers.0", BUFFER)
    assert stack.label(model.head.bias) == ("Model.head", PARAMETER)


def test_child_called_during_construction_is_not_named_for_ever(stack):
    class Probing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.linear(torch.ones(1, 4))
            self.linear.double().float()

    model = Probing()
    assert _modules.names() == {}
    model.to(torch.float32)
    assert list(_modules.names()) == ["Probing", "Probing.linear"]


def test_signatures_survive(stack):
    assert "device" in inspect.signature(nn.Linear).parameters
    assert "in_features" in inspect.signature(nn.Linear.__init__).parameters
    nn.utils.skip_init(nn.Linear, 2, 2)


def test_classes_made_after_install_and_with_class_arguments(stack):
    class Mixin:
        def __init_subclass__(cls, flag=None, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.flag = flag

    class Late(nn.Module, Mixin, flag=7):
        def __init__(self):
            super().__init__()
            self.top = stack.top()

    assert Late.flag == 7
    assert Late().top == ("Late", *CONSTRUCT)


# ---- moving ---------------------------------------------------------------


def test_apply_has_each_modules_own_frame_on_top(stack):
    model = Model(1)
    seen = {}

    def note(tensor):
        seen[tuple(tensor.shape), stack.top()[0]] = stack.top()[1:]
        return tensor

    del stack.pushed[:]
    model._apply(note)
    assert seen[(4, 4), "Model.layers.0.linear"] == CONSTRUCT
    assert seen[(4,), "Model.layers.0"] == (BUFFER, LIFETIME_PERSISTENT)
    assert seen[(4, 4), "Model.head"] == CONSTRUCT
    assert {name for _, name in seen} == {
        "Model.layers.0.linear", "Model.layers.0", "Model.head"}


def test_move_relabels_buffers_and_gradients(stack):
    model = Model(1)
    model(torch.ones(1, 4)).sum().backward()
    model.double()
    assert stack.label(model.layers[0].scale) == ("Model.layers.0", BUFFER)
    assert stack.label(model.head.weight) == ("Model.head", PARAMETER)
    assert stack.label(model.head.weight.grad) == ("Model.head", GRADIENT)


def test_apply_that_raises_leaves_nothing(stack):
    model = Model(1)

    def fail(tensor):
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        model._apply(fail)
    assert stack.depth() == 0
    model.double()
    assert stack.label(model.head.weight) == ("Model.head", PARAMETER)


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def test_conversion_by_swapping(stack, swapping):
    model = Model(1)
    model(torch.ones(1, 4)).sum().backward()
    weight = model.head.weight
    model.double()
    assert model.head.weight is weight and weight.dtype == torch.float64
    assert stack.label(weight) == ("Model.head", PARAMETER)
    assert stack.label(weight.grad) == ("Model.head", GRADIENT)
    model.load_state_dict(model.state_dict())
    assert _modules.owner(weight) == stack.intern("Model.head")


def test_replaced_parameters_are_forgotten(stack):
    owners = _modules._installed.owners
    model = Model(1)
    model(torch.ones(1, 4))
    before = len(owners._tensors)
    for _ in range(10):
        model.head.weight = nn.Parameter(torch.ones(4, 4))
    assert len(owners._tensors) == before
    assert _modules.owner(model.head.weight) == stack.intern("Model.head")


def test_recurrent_modules_override_apply(stack):
    lstm = nn.LSTM(3, 3).double()
    assert stack.label(lstm.weight_ih_l0) == ("LSTM", PARAMETER)


# ---- what was loaded before ------------------------------------------------


def test_weights_loaded_before_become_the_parameters(stack):
    weight = torch.ones(4, 4)
    linear = nn.Linear(4, 4)
    linear(torch.ones(1, 4))
    linear.weight = nn.Parameter(weight)
    assert stack.label(weight) == ("Linear", PARAMETER)


def test_load_state_dict_assign(stack):
    model = Model(1)
    model(torch.ones(1, 4))
    state = {name: tensor.clone() for name, tensor
             in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    assert stack.label(state["head.weight"]) == ("Model.head", PARAMETER)
    assert stack.label(state["layers.0.scale"]) == ("Model.layers.0", BUFFER)


def test_parameters_put_into_the_dict_are_found_by_relabel_all(stack):
    model = Model(1)
    model(torch.ones(1, 4))
    hidden = nn.Parameter(torch.ones(4, 4))
    model.head._parameters["weight"] = hidden
    assert stack.label(hidden) is None
    assert _modules.owner(hidden) is None
    assert _modules.relabel_all() == len(_modules.names())
    assert stack.label(hidden) == ("Model.head", PARAMETER)
    assert _modules.owner(hidden) == stack.intern("Model.head")


def test_gradients_are_labelled_on_request(stack):
    model = Model(1)
    model(torch.ones(1, 4))
    model.head.weight.grad = torch.ones_like(model.head.weight)
    # Any thread's answer does this, and reading .grad is the trainer's.
    _modules.relabel_all()
    assert stack.label(model.head.weight.grad) is None
    _modules.watch(model)
    assert stack.label(model.head.weight.grad) == ("Model.head", GRADIENT)


def test_tied_weights_belong_to_the_first(stack):
    model = Model(1)
    model.head.weight = model.layers[0].linear.weight
    model(torch.ones(1, 4))
    tied = model.head.weight
    assert stack.label(tied) == ("Model.layers.0.linear", PARAMETER)
    model.double()
    assert stack.label(tied) == ("Model.layers.0.linear", PARAMETER)


def test_tensors_without_an_address_are_left_alone(stack):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = nn.Linear(4, 4)
        fake(torch.ones(1, 4))
    meta = nn.Linear(4, 4, device="meta")
    meta(torch.ones(1, 4, device="meta"))
    lazy = nn.LazyLinear(4)
    lazy(torch.ones(1, 3))
    lazy(torch.ones(1, 3))
    assert isinstance(lazy, nn.Linear)
    addresses = {address for address, *_ in stack.relabelled}
    assert fake.weight is not None and 0 not in addresses
