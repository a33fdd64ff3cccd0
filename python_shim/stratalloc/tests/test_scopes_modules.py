# SPDX-License-Identifier: Apache-2.0
"""Module scopes on CPU tensors, with a scope stack written in Python."""

import copy
import gc
import inspect
import io
import pickle
import threading

import pytest
import torch
from fake_stack import FakeStack
from torch import nn

from stratalloc import _modules
from stratalloc import _stack
from stratalloc._stack import (ACTIVATION, BUFFER, GRADIENT,
                               LIFETIME_PERSISTENT, LIFETIME_TRANSIENT,
                               PARAMETER)

FORWARD = (ACTIVATION, LIFETIME_TRANSIENT)
CONSTRUCT = (PARAMETER, LIFETIME_PERSISTENT)


@pytest.fixture
def stack():
    gc.collect()  # names of earlier tests' models are free again
    fake = FakeStack()
    previous = _stack.use(fake)
    _modules.install()
    _modules._installed.owners.on_device = lambda tensor: True
    yield fake
    _modules.uninstall()
    _stack.use(previous)
    assert fake.depth() == 0, "frames left on the stack"
    assert fake.extra_pops == 0, "a pop without a push"


class Block(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.register_buffer("scale", torch.ones(size))
        self.seen = None

    def forward(self, x):
        if self.seen is not None:
            self.seen(self)
        return self.linear(x) * self.scale


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


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


def test_named_module_keeps_its_name(stack):
    model = Model()
    model.layers[0](torch.ones(1, 4))
    assert "Block" in _modules.names()
    model(torch.ones(1, 4))
    names = _modules.names()
    assert "Block.linear" in names
    assert "Model.layers.1.linear" in names
    assert "Model.layers.0" not in names


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
    model(torch.ones(1, 4)).sum().backward()
    _modules.relabel_all()
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


# ---- torch's own machinery --------------------------------------------------


def test_hooks_keep_working_inside_the_frame(stack):
    model = Model(1)
    tops = []
    model.head.register_forward_pre_hook(
        lambda module, args: tops.append(("pre", stack.top()[0])))
    model.head.register_forward_hook(
        lambda module, args, out: tops.append(("post", stack.top()[0])))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: None)
    try:
        model(torch.ones(1, 4)).sum().backward()
    finally:
        handle.remove()
    assert tops == [("pre", "Model.head"), ("post", "Model.head")]


def test_class_with_its_own_call(stack):
    class Direct(nn.Module):
        def __call__(self, x):
            return x + 1

    class Around(Block):
        def __call__(self, x):
            return super().__call__(x) * 2

    assert Direct()(1) == 2
    x = torch.ones(1, 4)
    around = Around()
    assert torch.equal(around(x), around.forward(x) * 2)


def test_compile_sees_one_graph(stack):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()
    x = torch.ones(1, 4)
    expected = model(x)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), expected)
    assert torch.equal(compiled(x), expected)
    assert len(graphs) == 1
    ops = [node for node in graphs[0].graph.nodes
           if node.op == "call_function"]
    assert len(ops) == 5  # 3 linears, 2 multiplications


def test_compiled_region_is_one_scope_of_the_model(stack):
    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(1, 4)
    compiled(x)
    del stack.pushed[:]
    compiled(x)
    assert stack.pushed == [("Model", *FORWARD)]
    assert "Model.layers.0.linear" in _modules.names()


def test_compile_in_place(stack):
    torch._dynamo.reset()
    model = Model()
    x = torch.ones(1, 4)
    expected = model(x)
    model.compile(backend="eager", fullgraph=True)
    assert torch.equal(model(x), expected)


def test_explain_counts_no_breaks(stack):
    torch._dynamo.reset()
    report = torch._dynamo.explain(Model())(torch.ones(1, 4))
    assert report.graph_count == 1
    assert report.graph_break_count == 0


def test_export_trace_script_and_fx(stack):
    model = Model().eval()
    x = torch.ones(1, 4)
    expected = model(x)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
    traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), expected)
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    scripted(x)
    scripted.double()
    assert any(path.startswith("Sequential") for path in stack.paths)
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    graph(x)
    copy.deepcopy(scripted)(x.double())


def test_data_parallel_stands_for_its_model(stack):
    model = nn.DataParallel(Model(1))
    x = torch.ones(1, 4)
    model(x)
    assert stack.intern("Model") in _modules.names().values()
    assert not any("DataParallel" in path for path in stack.paths
                   if "." in path)
    replica = model.module._replicate_for_data_parallel()
    for _ in range(3):
        replica = model.module._replicate_for_data_parallel()
        replica(x)
    assert "Model#2" not in stack.paths


def test_checkpoint_recomputes_in_its_scope(stack):
    from torch.utils.checkpoint import checkpoint

    model = Model(1)
    x = torch.ones(1, 4, requires_grad=True)
    out = checkpoint(model, x, use_reentrant=False)
    del stack.pushed[:]
    out.sum().backward()
    assert ("Model.head", *FORWARD) in stack.pushed


def test_threads_name_one_model_once(stack):
    model = Model(4)
    failures = []
    start = threading.Barrier(4)

    def work():
        try:
            start.wait()
            for _ in range(20):
                model(torch.ones(1, 4))
            assert stack.depth() == 0
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert "Model#2" not in stack.paths
    assert len(_modules.names()) == 11


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
