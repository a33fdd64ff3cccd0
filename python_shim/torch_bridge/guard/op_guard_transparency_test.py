# SPDX-License-Identifier: Apache-2.0
"""What sits above the dispatcher's backend keys does not notice the guard."""

from python_shim.torch_bridge.testing import bridge as support

DEVICE, BRIDGE = support.load(devices=2)

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

BRIDGE.call("install_guard")
BRIDGE.call("install")
torch.cuda.init()


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    ).cuda()


@pytest.fixture(autouse=True)
def _evictable():
    BRIDGE.evictable()
    yield
    assert BRIDGE.open() == 0


@pytest.fixture(name="x")
def _x():
    torch.manual_seed(1)
    return torch.randn(3, 4).cuda()


def test_compile_keeps_one_graph(x):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model = _model()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 1


def test_make_fx_sees_the_same_operators(x):
    model = _model()
    inside = make_fx(lambda a: model(a).relu())(x)
    model.cpu()
    outside = make_fx(lambda a: model(a).relu())(x.cpu())
    names = [[str(n.target) for n in g.graph.nodes if n.op == "call_function"]
             for g in (inside, outside)]
    assert names[0] == names[1]


def test_fake_tensors_need_no_bytes(x):
    before = BRIDGE.enters()
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.empty(3, 4, device="cpu"))
        assert (fake @ fake.t()).shape == (3, 3)
    assert BRIDGE.enters() == before


def test_func_grad_and_vmap(x):
    def loss(a):
        return (a * a).sum()

    assert torch.equal(torch.func.grad(loss)(x), 2 * x)
    assert torch.equal(torch.func.vmap(lambda row: row * 2)(x), x * 2)


def test_jit_trace(x):
    model = _model()
    traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))


def test_autocast_still_casts(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert _model()(x).dtype == torch.bfloat16


def test_inference_mode_and_no_grad(x):
    model = _model()
    with torch.no_grad():
        expected = model(x)
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


def test_dispatch_modes_see_the_operators(x):
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        x + 1
    assert seen == ["aten.add.Tensor"]


def test_gradcheck(x):
    y = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: (a * a).sum(), y)


def test_operands_on_two_devices_enter_once_for_each(x):
    other = torch.zeros(3, 4, device="cuda:1")
    before = BRIDGE.enters()
    other.copy_(x)
    assert BRIDGE.enters() == before + 2
    assert torch.equal(other.cpu(), x.cpu())


def test_the_tensors_device_counts_not_the_current_one(x):
    other = torch.ones(3, device="cuda:1")
    assert torch.cuda.current_device() == 0
    assert (other + 1).tolist() == [2, 2, 2]
    assert BRIDGE.core.recording_device() == 1


def test_custom_operator_defined_later_compiles(x):
    @torch.library.custom_op("bridge_custom::scale", mutates_args=())
    def scale(a: torch.Tensor, by: float) -> torch.Tensor:
        return a * by

    scale.register_fake(lambda a, by: torch.empty_like(a))
    scale.register_autograd(lambda ctx, g: (g * 3.0, None))
    assert BRIDGE.guarded("bridge_custom::scale")
    y = x.clone().requires_grad_()
    compiled = torch.compile(
        lambda a: scale(a, 3.0) + 1, backend="aot_eager", fullgraph=True
    )
    out = compiled(y)
    assert torch.equal(out, x * 3 + 1)
    out.sum().backward()
    assert torch.equal(y.grad, torch.full_like(x, 3.0))
    with torch.inference_mode():
        assert torch.equal(scale(x, 2.0), x * 2)
    torch.library.opcheck(scale, (x, 2.0))


def test_composite_operator_defined_later(x):
    library = torch.library.Library("bridge_composite", "DEF")
    library.define("double(Tensor a) -> Tensor")
    library.impl("double", lambda a: a + a, "CompositeImplicitAutograd")
    y = x.clone().requires_grad_()
    torch.ops.bridge_composite.double(y).sum().backward()
    assert torch.equal(y.grad, torch.full_like(x, 2.0))
    with torch.inference_mode():
        assert torch.equal(torch.ops.bridge_composite.double(x), x * 2)
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = torch.empty(2, device="cuda")
        assert torch.ops.bridge_composite.double(fake).shape == (2,)


def test_library_that_goes_away_and_comes_back():
    for factor in (2, 3):
        library = torch.library.Library("bridge_again", "DEF")
        library.define("times(Tensor a) -> Tensor")
        library.impl("times", lambda a, factor=factor: a * factor, "CUDA")
        a = torch.ones(2, device="cuda")
        assert torch.ops.bridge_again.times.default(a).tolist() == [factor] * 2
        library._destroy()
