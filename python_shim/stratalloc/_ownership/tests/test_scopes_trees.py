# SPDX-License-Identifier: Apache-2.0
"""Module scopes on CPU tensors: the path of a module is that of its tree, also
if a part was used before the whole, or the tree is a copy that nobody calls.
"""

import copy
import pickle

import pytest
import torch
from scoped_models import Block
from scoped_models import Model
from scoped_models import stack  # noqa: F401
from torch import nn
from torch.optim.swa_utils import AveragedModel

from stratalloc._ownership import modules as _modules
from stratalloc._native.stack import (BUFFER, GRADIENT, OPTIMIZER_STATE,
                                      PARAMETER)

ROW = torch.ones(1, 4)


# ---- parts before the whole -------------------------------------------------


@pytest.mark.parametrize("use", [lambda part: part.to(torch.float32),
                                 lambda part: part(ROW), _modules.watch],
                         ids=["moved", "called", "watched"])
@pytest.mark.parametrize("name", [lambda whole: whole.to(torch.float32),
                                  lambda whole: whole(ROW), _modules.watch],
                         ids=["moved", "called", "watched"])
def test_a_part_gets_its_path_when_the_whole_is_named(stack, use, name):
    model = Model()
    use(model.layers[1])
    use(model.head)
    assert list(_modules.names()) == ["Block", "Block.linear", "Linear"]
    name(model)
    assert sorted(_modules.names()) == [
        "Model", "Model.head", "Model.layers", "Model.layers.0",
        "Model.layers.0.linear", "Model.layers.1", "Model.layers.1.linear"]
    block = model.layers[1]
    assert stack.label(block.scale) == ("Model.layers.1", BUFFER)
    assert stack.label(block.linear.weight) == ("Model.layers.1.linear",
                                                PARAMETER)
    assert stack.label(model.head.bias) == ("Model.head", PARAMETER)
    del stack.pushed[:]
    model.head(ROW)
    assert [path for path, *_ in stack.pushed] == ["Model.head"]
    # The names of roots are free again.
    other = nn.Linear(4, 4)
    other(ROW)
    assert "Linear" in _modules.names()
    assert "Linear#2" not in _modules.names()


def test_state_and_gradients_go_with_the_part(stack):
    model = Model(1)
    weight = model.head.weight
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    model.head(ROW).sum().backward()
    optimizer.step()
    state = optimizer.state[weight]["momentum_buffer"]
    assert stack.label(state) == ("Linear", OPTIMIZER_STATE)
    assert stack.label(weight.grad) == ("Linear", GRADIENT)
    model(ROW)
    assert stack.label(state) == ("Model.head", OPTIMIZER_STATE)
    _modules.watch(model)
    assert stack.label(weight.grad) == ("Model.head", GRADIENT)


def test_a_shared_part_keeps_its_first_parents_path(stack):
    part = nn.Linear(4, 4)
    part(ROW)
    first = nn.Sequential(part)
    first(ROW)
    second = nn.ModuleList([part])
    _modules.watch(second)
    assert sorted(_modules.names()) == ["ModuleList", "Sequential",
                                        "Sequential.0"]
    assert stack.label(part.weight) == ("Sequential.0", PARAMETER)


def test_a_wrapper_moves_nothing(stack):
    model = Model(1)
    model(ROW)
    before = _modules.names()
    torch.nn.DataParallel(model)(ROW)
    assert _modules.names() == before


# ---- copies -----------------------------------------------------------------


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(
    pickle.dumps(model))], ids=["deepcopy", "pickle"])
def test_a_copy_that_nobody_calls_has_the_path_of_its_tree(stack, again):
    model = Model(1)
    model(ROW)
    ema = again(model)
    _modules.relabel_all()
    weight = ema.layers[0].linear.weight
    assert stack.label(weight) == ("Model#2.layers.0.linear", PARAMETER)
    assert stack.label(ema.layers[0].scale) == ("Model#2.layers.0", BUFFER)


def test_a_copy_inside_of_another_module_has_its_path(stack):
    model = nn.Sequential(nn.Linear(4, 4), Block())
    model(ROW)
    ema = AveragedModel(model)
    _modules.relabel_all()
    assert stack.label(ema.module[0].weight) == ("AveragedModel.module.0",
                                                 PARAMETER)
    assert stack.label(ema.n_averaged) == ("AveragedModel", BUFFER)
    assert [path for path in _modules.names() if "#" in path] == []


def test_a_copy_is_no_child_of_who_asks(stack):
    model = Model(1)
    copies = []

    def ask(block):
        copies.append(copy.deepcopy(nn.Linear(4, 4)))
        _modules.relabel_all()

    model.layers[0].seen = ask
    model(ROW)
    assert stack.label(copies[0].weight) == ("Linear", PARAMETER)
    assert "Linear" in _modules.names()


def test_copies_without_memory_on_the_device_get_no_name(stack):
    _modules._installed.owners.on_device = lambda tensor: False
    ema = copy.deepcopy(Model(1))
    _modules.relabel_all()
    assert _modules.names() == {}
    _modules._installed.owners.on_device = lambda tensor: True
    _modules.relabel_all()
    assert stack.label(ema.head.weight) == ("Model.head", PARAMETER)
