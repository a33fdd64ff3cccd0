# SPDX-License-Identifier: Apache-2.0
"""Uses that no operator shows, while another thread evicts without pause:
custom functions, addresses, and the hooks that see them.

One process for the file; the simulated device in async mode, one seed after the
other.
"""

import ctypes

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.foreign_kernels import (  # noqa: E402,F401
    MIB, SEEDS, away, clean, foreign_copy, original_data_ptr, parameter,
    staying)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.evicting import evicting  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers
from stratalloc._hooks import compiled as _compiled
from stratalloc._hooks import exports as _exports
from stratalloc._hooks import foreign_call as _foreign_call
from stratalloc._hooks import functions as _functions
from stratalloc._native import _foreign


class Copied(torch.autograd.Function):
    """An extension that is no operator, as fused layers used to be."""

    @staticmethod
    def forward(ctx, source):
        out = torch.empty_like(source)
        foreign_copy(original_data_ptr(out), original_data_ptr(source),
                     source.nbytes)
        ctx.save_for_backward(source)
        return out

    @staticmethod
    def backward(ctx, grad):
        (source,) = ctx.saved_tensors
        out = torch.empty_like(source)
        foreign_copy(original_data_ptr(out), original_data_ptr(source),
                     source.nbytes)
        return out * grad


def test_custom_functions_keep_what_they_are_given():
    weights = [parameter(seed=i) for i in range(3)]
    expected = [w.detach().cpu() for w in weights]
    with evicting():
        for seed in range(SEEDS):
            simulate.driver().cudasim_set_seed(seed)
            weight, right = weights[seed % 3], expected[seed % 3]
            out = Copied.apply(weight)
            out.backward(torch.full_like(weight, 2.0))
            torch.cuda.synchronize()
            assert torch.equal(out.detach().cpu(), right)
            assert torch.equal(weight.grad.cpu(), 2 * right)
            weight.grad = None


def test_a_function_of_lists_and_attributes():
    class Listed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weights, scale):
            ctx.weights = weights[0]
            for weight in weights:
                assert stratalloc.evict([weight]) == 0
            return weights[0] * scale

        @staticmethod
        def backward(ctx, grad):
            assert _tiers.residency(ctx.weights)["host"] == 0
            assert stratalloc.evict([ctx.weights]) == 0
            return None, grad.sum()

    weights = [parameter(seed=i) for i in range(2)]
    scale = torch.ones((), device="cuda", requires_grad=True)
    away(*weights)
    out = Listed.apply(weights, scale)
    assert stratalloc.evict(weights) > 0  # no longer than the function
    out.sum().backward()
    assert stratalloc.evict(weights) > 0


def test_a_function_that_does_not_fit_is_refused_and_holds_nothing():
    weights = [parameter(16 * MIB, seed=i) for i in range(5)]
    with pytest.raises(torch.OutOfMemoryError, match="Copied.*more than the"):
        Copied.apply(weights)
    stratalloc.evict()
    assert stratalloc.report()["allocated"]["current"] == 0


def test_torchs_own_functions_need_not_fit():
    from torch.utils.checkpoint import checkpoint

    blocks = [nn.Linear(2048, 2048, device="cuda") for _ in range(5)]
    x = torch.ones(4, 2048, device="cuda", requires_grad=True)

    def through(x):
        for block in blocks:
            x = block(x)
        return x

    checkpoint(through, x, use_reentrant=True).sum().backward()
    assert all(block.weight.grad is not None for block in blocks)


def test_nested_functions_and_operators_between():
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            inner = Copied.apply(weight)
            assert stratalloc.evict([weight]) == 0
            return inner + weight

        @staticmethod
        def backward(ctx, grad):
            return grad

    weight = parameter()
    away(weight)
    out = Outer.apply(weight)
    assert stratalloc.evict([weight]) > 0
    assert torch.equal(out.detach().cpu(), 2 * weight.detach().cpu())


def test_addresses_of_data_ptr_are_kept_for_a_while():
    # Two of them are an eighth of the device, all are more.
    size = 3 * MIB
    weights = [parameter(size, seed=i) for i in range(3)]
    expected = [w.detach().cpu() for w in weights]
    target = torch.empty(size // 4, device="cuda")
    with evicting():
        for seed in range(SEEDS):
            simulate.driver().cudasim_set_seed(seed)
            weight = weights[seed % 3]
            address = weight.data_ptr()
            torch.empty_like(weight)  # an operator in between
            foreign_copy(target.data_ptr(), address, size)
            torch.cuda.synchronize()
            assert torch.equal(target.cpu(), expected[seed % 3])


def test_data_ptr_restores_and_storages_do_not():
    weight = parameter()
    away(weight)
    assert weight.untyped_storage().data_ptr() == original_data_ptr(weight)
    assert _tiers.residency(weight)["device"] == 0
    assert weight.data_ptr() == original_data_ptr(weight)
    assert _tiers.residency(weight)["device"] == MIB
    assert torch.empty(0, device="cuda").data_ptr() == 0


def test_data_ptr_never_raises():
    held = staying(48)
    big = parameter(8 * MIB)
    away(big)
    held += staying(12)
    assert big.data_ptr() == original_data_ptr(big)
    assert _tiers.residency(big)["host"] == 8 * MIB
    del held


def test_hooks_are_gone_after_uninstall_and_come_again():
    from torch.autograd import function

    before = (torch.Tensor.data_ptr, torch._C._to_dlpack,
              torch.Tensor.__dlpack_c_exchange_api__)
    for hooks in (_exports, _functions, _compiled):
        hooks.uninstall()
    try:
        assert "data_ptr" not in vars(torch.Tensor)
        assert "saved_tensors" not in vars(function.BackwardCFunction)
        assert torch._C._to_dlpack is not before[1]
        assert torch.Tensor.__dlpack_c_exchange_api__ is not before[2]
        weight = parameter()
        away(weight)
        assert weight.data_ptr() and _tiers.residency(weight)["device"] == 0
    finally:
        for hooks in (_exports, _functions, _compiled):
            hooks.install()
    assert weight.data_ptr() and _tiers.residency(weight)["device"] == MIB


def test_entering_what_is_no_tensor():
    assert _foreign.enter("nothing", [1, "two", None], (), False, True) is None
    with pytest.raises(TypeError, match="5 arguments"):
        _foreign.enter("too few")
    with pytest.raises(ValueError, match="what enter"):
        _foreign.leave(0)
    _foreign.leave(None)


def test_what_was_told_inside_is_out_of_memory_outside():
    """Others took the room of a call; whoever made it may make it smaller."""
    told = "CUDA out of memory. Others took it."

    def enter(name, tensors, count, written, copies, kind, out, *text):
        out[0] = 1
        return 0

    def leave(call, text, size):
        ctypes.memmove(text, told.encode() + b"\0", len(told) + 1)
        return 1

    pointer, i32 = ctypes.c_void_p, ctypes.c_int
    doors = (
        ctypes.CFUNCTYPE(i32, pointer, pointer, i32, i32, i32, i32,
                         ctypes.POINTER(pointer), pointer, i32)(enter),
        ctypes.CFUNCTYPE(i32, pointer, pointer, i32)(leave))
    weight = parameter()

    def fail(error):
        raise error

    def called(error):
        _foreign.call("x", [weight], (), True, fail, (error,), None)

    def entered(error):
        with _foreign_call.entered("x", [weight]):
            raise error

    try:
        _foreign.bind(*(ctypes.cast(door, pointer).value for door in doors),
                      torch.Tensor, torch.OutOfMemoryError, nn.Parameter,
                      torch._C.DisableTorchFunction,
                      torch._C._is_torch_function_mode_enabled)
        for run in (called, entered):
            with pytest.raises(torch.OutOfMemoryError, match="Others took it"):
                run(RuntimeError(told + " Exception raised from"))
            for other in (RuntimeError("other"), ValueError(told),
                          KeyboardInterrupt()):
                with pytest.raises(type(other)) as raised:
                    run(other)
                assert raised.value is other
    finally:
        _foreign_call.bind(torch)


def test_overrides_are_not_asked_for_addresses():
    """A subclass that refuses what it does not know, and a mode, see nothing."""
    class Narrow(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    class Sees(torch.overrides.TorchFunctionMode):
        seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    weight = parameter()
    narrow = weight.detach().as_subclass(Narrow)
    for tensor in (narrow, weight):
        with Sees():
            call = _foreign.enter("x", [tensor], (), False, True)
            _foreign.leave(call)
        assert call is not None
    assert Sees.seen == []


def test_what_a_backward_unpacks_inside_another_function_breaks_no_order():
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, outer, grad):
            outer.saved_tensors  # pylint: disable=pointless-statement
            return grad.clone()

        @staticmethod
        def backward(ctx, grad):
            return None, grad

    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            ctx.save_for_backward(weight)
            return weight.sum()

        @staticmethod
        def backward(ctx, grad):
            (weight,) = ctx.saved_tensors
            Inner.apply(ctx, grad)
            assert stratalloc.evict([weight]) == 0
            assert _tiers.residency(weight)["host"] == 0
            return grad.expand_as(weight)

    weight = parameter(4 * MIB)
    out = Outer.apply(weight)
    away(weight)
    out.backward()
    stratalloc.evict([weight])
    assert _tiers.residency(weight)["device"] == 0
