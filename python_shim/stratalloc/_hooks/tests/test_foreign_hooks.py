# SPDX-License-Identifier: Apache-2.0
"""The hooks as torch sees them: on CPU tensors, without a device.

Graphs, guards and torch.func are those of a torch without hooks; what is
hooked is reached; modules are waited for, not imported; everything is put
back. One process for the file.
"""

import copy
import importlib
import inspect
import subprocess
import sys
import textwrap
import types

import pytest
import torch
from torch.autograd import function

from stratalloc._hooks import compiled as _compiled
from stratalloc._hooks import exports as _exports
from stratalloc._hooks import functions as _functions
from stratalloc._hooks import patching as _patching
from stratalloc._native import _foreign

_foreign.bind(0, 0, torch.Tensor, torch.OutOfMemoryError, torch.nn.Parameter,
              torch._C.DisableTorchFunction,
              torch._C._is_torch_function_mode_enabled)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


class Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@pytest.fixture
def seen(monkeypatch):
    """What is entered, as (name, tensors)."""
    entered = []

    def enter(name, reads, *others):
        del others
        entered.append((name, sum(isinstance(one, torch.Tensor)
                                  for one in reads)))

    def call(name, reads, writes, is_function, function, args, kwargs):
        enter(name, reads, writes, is_function)
        return function(*args, **(kwargs or {}))

    monkeypatch.setattr(_compiled, "call", call)
    monkeypatch.setattr(_functions, "call", call)
    monkeypatch.setattr(_functions, "enter", enter)
    return entered


@pytest.fixture
def hooks():
    for module in (_compiled, _functions, _exports):
        module.install()
    yield
    for module in (_compiled, _functions, _exports):
        module.uninstall()


def _products(x, w):
    """Inductor has no kernel to compile for it."""
    return Product.apply(x, w) @ w


def _model(x, w):
    return torch.relu(Product.apply(x, w)).sin() + Square.apply(x).sum()


def _traced():
    """(graphs, breaks, operators, guards) of a compiled function."""
    torch._dynamo.reset()
    x, w = torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
    found = torch._dynamo.explain(_model)(x, w)
    guards = sorted(str(guard.create_fn) for guard in found.out_guards)
    return (found.graph_count, found.graph_break_count, found.op_count,
            [str(graph.graph) for graph in found.graphs], len(guards))


def test_graphs_and_guards_are_the_same(request):
    without = _traced()
    request.getfixturevalue("hooks")
    assert _traced() == without
    assert without[:2] == (1, 0)


def test_torch_func_gives_the_same(hooks):
    del hooks
    x = torch.arange(8.0)
    assert torch.equal(
        torch.func.grad(lambda t: Square.apply(t).sum())(x), 2 * x)
    assert torch.equal(torch.func.vmap(Square.apply)(x), x * x)
    assert torch.equal(
        torch.func.jacrev(Square.apply)(x), torch.diag(2 * x))


def test_compiled_graphs_are_reached_in_both_directions(hooks, seen):
    del hooks
    torch._dynamo.reset()
    w = torch.ones(8, 8, requires_grad=True)
    out = torch.compile(_products, fullgraph=True)(torch.ones(4, 8), w)
    out.sum().backward()
    assert [name for name, _ in seen] == ["a compiled graph"] * 2
    assert all(tensors >= 2 for _, tensors in seen)


def test_a_region_inside_a_graph_is_entered_by_itself(hooks, seen):
    del hooks
    from torch._dynamo.backends.common import aot_autograd
    from torch.fx import traceback
    from torch.fx.passes.regional_inductor import regional_inductor

    def model(x, y):
        z = x.sin()
        with traceback.annotate({"compile_with_inductor": {}}):
            z = z @ y
        return z.cos()

    torch._dynamo.reset()
    compiler = lambda graph, *inputs: regional_inductor(graph, *inputs)
    compiled = torch.compile(model, fullgraph=True, backend=aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler))
    compiled(torch.ones(4, 4), torch.ones(4, 4, requires_grad=True))
    assert seen == [("a compiled graph", 2)]


def test_a_graph_compiled_before_is_reached_until_uninstall(seen):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x @ x)
    compiled(torch.ones(3, 3))
    assert seen == []
    _compiled.install()
    try:
        compiled(torch.ones(3, 3))
        assert seen == [("a compiled graph", 1)]
    finally:
        _compiled.uninstall()
    compiled(torch.ones(3, 3))
    assert len(seen) == 1


def test_each_block_is_a_region():
    from torch import nn
    from torch._dynamo.testing import CompileCounter

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).relu()

    for model, blocks in (
            (nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Block()), 3),
            (nn.ModuleDict({"a": nn.Sequential(Block(), Block())})["a"], 2),
            (Block(), 1),
            # More than Dynamo compiles of one code object.
            (nn.Sequential(*(nn.Linear(4, 4 + 0 * i) if i % 2 else Block()
                             for i in range(12))), 12)):
        torch._dynamo.reset()
        counter = CompileCounter()
        x = torch.ones(2, 4)
        expected = model(x)
        assert _compiled.compile_per_layer(model, backend=counter) is model
        assert torch.equal(model(x), expected)
        assert counter.frame_count == blocks
        assert torch.equal(copy.deepcopy(model)(x), expected)
        assert counter.frame_count == blocks  # a copy is not compiled


def test_custom_functions_are_entered_and_torchs_are_not(hooks, seen):
    del hooks
    from torch.utils.checkpoint import checkpoint

    x, w = torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
    Product.apply(x, w).sum().backward()
    # forward; backward's gradient; what it unpacked.
    assert [name for name, _ in seen] == [
        "Product", "ProductBackward", "ProductBackward"]
    assert seen[0][1] == seen[2][1] == 2
    seen.clear()
    checkpoint(torch.relu, w, use_reentrant=True).sum().backward()
    assert seen == []


def test_what_was_there_is_put_back():
    before = {
        (owner, name): vars(owner).get(name)
        for owner, name in (
            (torch.Tensor, "data_ptr"), (torch.Tensor, "__dlpack__"),
            (torch.Tensor, "__cuda_array_interface__"),
            (torch.Tensor, "__dlpack_c_exchange_api__"),
            (torch._C, "_to_dlpack"), (torch._C, "_to_dlpack_versioned"),
            (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack"),
            (function.Function, "apply"),
            (function.BackwardCFunction, "apply"),
            (function.BackwardCFunction, "saved_tensors"))}
    finders = list(sys.meta_path)
    for module in (_compiled, _functions, _exports):
        module.install()
        module.install()  # a second time changes nothing
    for module in (_compiled, _functions, _exports):
        module.uninstall()
    for (owner, name), value in before.items():
        assert vars(owner).get(name) is value, name
    assert sys.meta_path == finders


def test_nothing_is_imported_for_it():
    program = textwrap.dedent("""
        import sys
        import torch
        from stratalloc._hooks import compiled as _compiled
        from stratalloc._native import _foreign
        _foreign.bind(0, 0, torch.Tensor, torch.OutOfMemoryError,
                      torch.nn.Parameter, torch._C.DisableTorchFunction,
                      torch._C._is_torch_function_mode_enabled)
        waited = ("torch._inductor.output_code",
                  "triton.backends.nvidia.driver")
        assert not any(name in sys.modules for name in waited)
        _compiled.install()
        assert not any(name in sys.modules for name in waited)
        import torch._inductor.output_code as output_code
        call = output_code.CompiledFxGraph.__call__
        assert call.__code__.co_filename.endswith("_hooks/compiled.py")
        assert "stratalloc" not in type(output_code.__loader__).__module__
        _compiled.uninstall()
        assert output_code.CompiledFxGraph.__call__ is not call
        import triton.backends.nvidia.driver as driver
        launch = driver.CudaLauncher.__call__
        assert launch.__code__.co_filename.endswith("driver.py")
        _compiled.install()
        launch = driver.CudaLauncher.__call__
        assert launch.__code__.co_filename.endswith("_hooks/compiled.py")
    """)
    subprocess.run([sys.executable, "-c", program], check=True)


def test_somebody_elses_replacement_is_left_alone():
    owner = types.SimpleNamespace
    target = type("Target", (), {"name": lambda self: 1})
    made = _patching.Replaced()
    assert made.replace(target, "name", lambda original: lambda self: 2)
    assert not made.replace(owner, "missing", lambda original: original)
    theirs = lambda self: 3
    target.name = theirs
    made.put_back()
    assert target().name() == 3


def test_call_passes_everything_on():
    def function(*args, **kwargs):
        return args, kwargs

    assert _foreign.call("x", (), (), True, function, (1, 2),
                         {"a": 3}) == ((1, 2), {"a": 3})
    assert _foreign.call("x", (), (), True, function, (), None) == ((), {})
    with pytest.raises(ZeroDivisionError):
        _foreign.call("x", (), (), True, lambda: 1 / 0, (), None)


def test_a_callback_that_fails_breaks_no_import(tmp_path, monkeypatch, caplog):
    (tmp_path / "waited_for.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def fail(module):
        raise LookupError(module.value)

    made = _patching.Replaced()
    made.when_imported("waited_for", fail)
    module = importlib.import_module("waited_for")
    assert module.value == 7
    assert "could not prepare waited_for" in caplog.text
    assert inspect.getsource(module) == "value = 7\n"
