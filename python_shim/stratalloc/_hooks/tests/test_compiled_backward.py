# SPDX-License-Identifier: Apache-2.0
"""Compiled autograd: a graph in the place of nodes is nobody's, and counted."""

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo import compiled_autograd  # noqa: E402

from python_shim.testing.accounts import rows, sums, total  # noqa: E402,F401
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from stratalloc._ownership import modules as _modules  # noqa: E402
import stratalloc  # noqa: E402

SIZE = 256
WEIGHT = SIZE * SIZE * 4
NOBODYS = "(unattributed)"
COMPILERS = {
    "uncompiled": lambda graph: graph,
    "aot_eager": lambda graph: torch.compile(graph, backend="aot_eager"),
}


def net(name):
    layers = [nn.Linear(SIZE, SIZE, bias=False) for _ in range(3)]
    return type(name, (nn.Sequential,), {})(*layers).to("cuda")


def data():
    return torch.randn(32, SIZE, device="cuda")


def counts():
    found = stratalloc.report()
    return found["compiled_backwards"], found["nodes_without_scope"]


@pytest.fixture(autouse=True)
def forgotten():
    yield
    torch._dynamo.reset()
    compiled_autograd.reset()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("forward", [False, True])
def test_what_the_graph_allocates_is_nobodys_and_counted(compiler, forward):
    name = f"Compiled_{compiler}_{forward}"
    model = net(name)
    call = torch.compile(model, backend="aot_eager") if forward else model
    optimizer = torch.optim.SGD(model.parameters())
    runs, unknown = counts()
    for number in range(1, 4):
        with compiled_autograd._enable(COMPILERS[compiler]):
            call(data()).sum().backward()
        assert counts() == (runs + number, unknown)
        assert rows(NOBODYS) == {("", "activation"): 3 * WEIGHT}
        assert total(name, "gradient") == 0
        optimizer.step()
        assert rows(NOBODYS) == {}
        assert total(name, "gradient") == 3 * WEIGHT
        optimizer.zero_grad()
    assert not [path for path in _modules.names()
                if "CompiledAutograd" in path]
    model(data()).sum().backward()
    assert counts() == (runs + 3, unknown), "nodes ran, and no graph"
    assert total(name, "gradient") == 3 * WEIGHT


def test_a_module_that_a_hook_calls_is_itself():
    model, helper = net("Hooked"), type("Helper", (nn.Linear,), {})(
        SIZE, SIZE, bias=False, device="cuda")
    seen = []
    model[1].weight.register_hook(lambda gradient: seen.append(
        helper(gradient.detach()).detach()))
    with compiled_autograd._enable(COMPILERS["uncompiled"]):
        model(data()).sum().backward()
    assert rows("Helper") == {("", "parameter"): WEIGHT,
                              ("", "activation"): WEIGHT}
    assert rows(NOBODYS) == {("", "activation"): 3 * WEIGHT}


def test_a_graph_that_raises_leaves_no_frame():
    model = net("Raising")

    def fail(gradient):
        raise RuntimeError("planted")

    model[1].weight.register_hook(fail)
    with compiled_autograd._enable(COMPILERS["uncompiled"]):
        with pytest.raises(RuntimeError, match="planted"):
            model(data()).sum().backward()
    model.zero_grad()
    with stratalloc.scope("After"):
        mine = data()
    assert rows("After") == {("", "unknown"): mine.nbytes}
