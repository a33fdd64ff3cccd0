# SPDX-License-Identifier: Apache-2.0
"""Module scopes on CPU tensors: the frame and its name while a module runs."""

import copy
import gc
import io
import pickle

import pytest
import torch
from fake_stack import FakeStack
from scoped_models import CONSTRUCT
from scoped_models import FORWARD
from scoped_models import Block
from scoped_models import Model
from scoped_models import stack  # noqa: F401
from torch import nn

from stratalloc._ownership import modules as _modules
from stratalloc._native import stack as _stack
from stratalloc._native.stack import BUFFER


def test_forward_pushes_paths_in_order(stack):
    model = Model()
    del stack.pushed[:]
    model(torch.ones(1, 4))
    assert stack.pushed == [
        ("Model", *FORWARD),
        ("Model.layers.0", *FORWARD),
        ("Model.layers.0.linear", *FORWARD),
        ("Model.layers.1", *FORWARD),
        ("Model.layers.1.linear", *FORWARD),
        ("Model.head", *FORWARD),
    ]


def test_frame_is_on_top_inside_forward_and_gone_after(stack):
    model = Model()
    tops = []
    model.layers[1].seen = lambda block: tops.append(
        (stack.stack(), stack.top()))
    model(torch.ones(1, 4))
    assert tops == [(["Model", "Model.layers.1"],
                     ("Model.layers.1", *FORWARD))]
    assert stack.depth() == 0


def test_frame_is_popped_when_forward_raises(stack):
    model = Model()

    def fail(block):
        raise KeyError("planted")

    model.layers[0].seen = fail
    with pytest.raises(KeyError, match="planted"):
        model(torch.ones(1, 4))
    assert stack.depth() == 0


def test_copy_gets_its_own_name_and_a_dead_ones_is_free(stack):
    x = torch.ones(1, 4)
    model = Model()
    model(x)
    twin = copy.deepcopy(model)
    twin(x)
    names = _modules.names()
    assert names["Model"] != names["Model#2"]
    assert "Model#2.layers.0.linear" in names
    del twin
    gc.collect()
    assert "Model#2" not in _modules.names()
    third = Model()
    third(x)
    assert "Model#2" in _modules.names()
    assert "Model#3" not in _modules.names()


def test_dead_modules_and_tensors_are_forgotten(stack):
    owners = _modules._installed.owners
    gc.collect()
    before = len(owners._modules), len(owners._tensors), len(owners.scopes)
    model = Model()
    model(torch.ones(1, 4))
    assert len(owners.scopes) > before[2]
    del model
    gc.collect()
    after = len(owners._modules), len(owners._tensors), len(owners.scopes)
    assert after == before


def test_nothing_of_ours_is_in_the_module(stack):
    torch.manual_seed(0)
    model = Model()
    before = {name: set(module.__dict__)
              for name, module in model.named_modules()}
    model(torch.ones(1, 4))
    after = {name: set(module.__dict__)
             for name, module in model.named_modules()}
    assert after == before
    loaded = pickle.loads(pickle.dumps(model))
    x = torch.ones(1, 4)
    assert torch.equal(loaded(x), model(x))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    assert list(model.state_dict()) == list(loaded.state_dict())


def test_module_with_odd_equality_and_no_hash(stack):
    class Odd(Block):
        __hash__ = None

        def __eq__(self, other):
            raise AssertionError("compared")

    model = nn.Sequential(Odd())
    model(torch.ones(1, 4))
    names = _modules.names()
    assert "Sequential.0.linear" in names
    assert stack.label(model[0].scale) == ("Sequential.0", BUFFER)


def test_child_added_later_gets_its_path(stack):
    model = Model()
    model(torch.ones(1, 4))
    model.layers.append(Block())
    model(torch.ones(1, 4))
    assert "Model.layers.2.linear" in _modules.names()


def test_module_that_is_nobodys_child_is_named_below_its_caller(stack):
    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.Linear(4, 4)]

        def forward(self, x):
            return nn.ReLU()(self.hidden[0](x))

    caller = Caller()
    caller(torch.ones(1, 4))
    caller(torch.ones(1, 4))
    assert "Caller.Linear" in _modules.names()
    assert "Caller.ReLU#2" not in stack.paths


def test_user_scope_around_does_not_change_module_paths(stack):
    from stratalloc.scopes import scope

    with scope("train"):
        Model()(torch.ones(1, 4))
    assert "Model.head" in stack.paths
    assert not any(path.startswith("train/Model") for path in stack.paths)



# ---- installing -----------------------------------------------------------


def test_install_and_uninstall_restore_everything():
    saved = (nn.Module.__call__, nn.Module._apply, nn.Linear.__init__,
             nn.Module.__dict__.get("__init_subclass__"),
             torch.optim.Optimizer.profile_hook_step,
             dict(nn.modules.module._global_parameter_registration_hooks),
             dict(nn.modules.module._global_buffer_registration_hooks))
    fake = FakeStack()
    previous = _stack.use(fake)
    try:
        _modules.install()
        first = nn.Module.__call__
        _modules.install()
        assert nn.Module.__call__ is first
        assert first is not saved[0]
        assert nn.Linear.__init__ is not saved[2]

        class Between(nn.Module):
            def __init__(self):
                super().__init__()

        _modules.uninstall()
        _modules.uninstall()
        assert (nn.Module.__call__, nn.Module._apply, nn.Linear.__init__,
                nn.Module.__dict__.get("__init_subclass__"),
                torch.optim.Optimizer.profile_hook_step,
                dict(nn.modules.module._global_parameter_registration_hooks),
                dict(nn.modules.module._global_buffer_registration_hooks)
                ) == saved
        del fake.pushed[:]
        Between()
        Model()(torch.ones(1, 4))
        # A wrapper that someone saved passes on without a frame.
        first(nn.Linear(4, 4), torch.ones(1, 4))
        assert fake.pushed == []
        assert _modules.names() == {}
        assert _modules.relabel_all() == 0
    finally:
        _modules.uninstall()
        _stack.use(previous)


def test_overridden_moves_are_restored():
    class Mixin:
        def _apply(self, fn, recurse=True):
            return super()._apply(fn, recurse)

    class Inherits(Mixin, nn.Module):
        pass

    def moves():
        return (nn.RNNBase.__dict__["_apply"], nn.Module.__dict__["_apply"],
                Mixin.__dict__["_apply"], Inherits.__dict__.get("_apply"),
                nn.Linear.__dict__.get("_apply"))

    saved = moves()
    fake = FakeStack()
    previous = _stack.use(fake)
    try:
        _modules.install()
        assert nn.RNNBase.__dict__["_apply"] is not saved[0]
        # One frame for each module, however many of its classes take part.
        nn.LSTM(4, 4).half()
        assert [path for path, *_ in fake.pushed] == ["LSTM", "LSTM"], "made"
        Inherits().half()
        assert fake.pushed[2:] == [("Inherits", *CONSTRUCT)]
        _modules.uninstall()
        assert moves() == saved
    finally:
        _modules.uninstall()
        _stack.use(previous)


def test_anothers_patch_from_before_still_runs():
    calls = []

    def theirs(self, *args, **kwargs):
        calls.append(type(self).__name__)
        return self._call_impl(*args, **kwargs)

    nn.Module.__call__ = theirs
    fake = FakeStack()
    previous = _stack.use(fake)
    try:
        _modules.install()
        nn.Linear(4, 4)(torch.ones(1, 4))
        assert calls == ["Linear"]
        assert ("Linear", *FORWARD) in fake.pushed
        _modules.uninstall()
        assert nn.Module.__call__ is theirs
    finally:
        _modules.uninstall()
        _stack.use(previous)
        nn.Module.__call__ = nn.Module._wrapped_call_impl


def test_uninstall_under_anothers_patch(stack):
    ours = nn.Module.__call__

    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    nn.Module.__call__ = theirs
    try:
        _modules.uninstall()
        assert nn.Module.__call__ is theirs
        del stack.pushed[:]
        nn.Linear(4, 4)(torch.ones(1, 4))
        assert stack.pushed == []
    finally:
        nn.Module.__call__ = nn.Module._wrapped_call_impl
