# SPDX-License-Identifier: Apache-2.0
"""Module scopes and torch's own machinery: hooks, compile, export, threads."""

import copy
import threading

import torch
from scoped_models import FORWARD
from scoped_models import Block
from scoped_models import Model
from scoped_models import stack  # noqa: F401
from torch import nn

from stratalloc._ownership import modules as _modules


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
