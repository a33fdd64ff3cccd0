# SPDX-License-Identifier: Apache-2.0
"""What a custom autograd.Function is given, in whatever it is given it.

Each function here asks whether its operands are on the device, and tries to
evict them. One process for the file, on the simulated device.
"""


import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402

# Whole handles: of smaller ones one would bring the other back.
SIZE = 4 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go()


def weight(seed=0):
    module = nn.Module()
    module.weight = nn.Parameter(torch.full((SIZE // 4,), seed + 1.0,
                                            device="cuda"))
    return module.weight.detach()


def away(*tensors):
    torch.cuda.synchronize()
    stratalloc.evict(tensors)
    assert _tiers.residency(tensors)["device"] == 0


def check_stays(*tensors):
    """Asked inside a function: it is here, and nobody moves it."""
    assert stratalloc.evict(tensors) == 0
    assert _tiers.residency(tensors)["host"] == 0


class Given(torch.autograd.Function):
    """operands: anything; inside: the tensors that must be there."""

    @staticmethod
    def forward(ctx, x, operands, inside):
        check_stays(*inside())
        ctx.operands = operands
        ctx.inside = inside
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        check_stays(*ctx.inside())
        return grad, None, None


def run(operands, inside):
    x = torch.ones(3, device="cuda", requires_grad=True)
    away(*inside)
    # As a function: a tuple of tensors would be operands by itself.
    out = Given.apply(x, operands, lambda: inside)
    assert stratalloc.evict(inside) > 0  # no longer than the function
    out.sum().backward()
    assert stratalloc.evict(inside) > 0


@pytest.mark.parametrize("hold", [
    lambda a, b: {"a": a, "b": b},
    lambda a, b: [{"a": a}, {"b": b}],
    lambda a, b: {"layers": [a], "norm": (b,)},
    lambda a, b: ((a,), None, "text", [b]),
], ids=["dict", "dict in list", "list in dict", "lists in tuple"])
def test_operands_in_containers(hold):
    a, b = weight(), weight(1)
    run(hold(a, b), (a, b))


def test_tensors_inside_wrappers():
    inside = [weight(i) for i in range(4)]
    wrapped = TwoTensor(TwoTensor(*inside[:2]), TwoTensor(*inside[2:]))
    run(wrapped, inside)
    run({"w": nn.Parameter(wrapped)}, inside)


def test_jagged_nested_tensors():
    values = weight().reshape(512, -1)
    offsets = torch.tensor([0, 5, 512], device="cuda")
    run(torch.nested.nested_tensor_from_jagged(values, offsets), (values,))


class Computes(torch.Tensor):
    """A wrapper whose inner tensor is made when it is asked for."""

    fails = False

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, dtype=inside.dtype, device=inside.device)

    def __init__(self, inside):
        self.base = inside

    @property
    def inside(self):
        return self.base[1:]

    def __tensor_flatten__(self):
        if self.fails:
            raise LookupError("not now")
        return ["inside"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_tensors_that_live_only_while_they_are_asked_for():
    inside = weight()
    run([Computes(inside)], (inside,))


def test_a_wrapper_that_cannot_say_what_is_inside_breaks_no_function():
    wrapper = Computes(weight())
    wrapper.fails = True
    x = torch.ones(3, device="cuda", requires_grad=True)
    Given.apply(x, wrapper, lambda: ()).sum().backward()
    assert x.grad.sum() == 3


class Doubled(torch.autograd.Function):
    """With a jvp that uses the tangent's address, as an extension would."""

    tangents = []
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, tangent):
        check_stays(*Doubled.tangents)
        return 2 * tangent


def test_tangents_of_forward_mode():
    x, tangent = weight(), weight(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        Doubled.tangents = [tangent]
        away(x, tangent)
        out = Doubled.apply(dual)
        assert stratalloc.evict([tangent]) > 0
        assert torch.equal(forward_ad.unpack_dual(out).tangent, 2 * tangent)


def test_tangents_of_torch_func():
    x, tangent = weight().reshape(2, -1), weight(2).reshape(2, -1)
    Doubled.tangents = [x, tangent]

    def function(one):
        away(x, tangent)
        return Doubled.apply(one)

    for make in (lambda f: f, torch.func.vmap):
        _, out = torch.func.jvp(make(function), (x,), (tangent,))
        assert torch.equal(out, 2 * tangent)
