# SPDX-License-Identifier: Apache-2.0
"""Uses that no operator shows, while another thread evicts without pause.

A foreign kernel here is a copy between devices' addresses by the CUDA runtime:
it reads what it is given, whoever guards it, and runs when its stream does. One
process for the file; the simulated device in async mode, one seed after the
other.
"""

import ctypes
import gc

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.evicting import evicting  # noqa: E402
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc import (_compiled, _exports, _foreign,  # noqa: E402
                        _foreign_call, _functions,
                        _pin_table, _tiers)

KIB, MIB = 1 << 10, 1 << 20
SEEDS = 100
DEVICE_TO_DEVICE, TO_HOST = 3, 2

runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaMemcpyAsync.argtypes = (ctypes.c_void_p, ctypes.c_void_p,
                                    ctypes.c_size_t, ctypes.c_int,
                                    ctypes.c_void_p)
original_data_ptr = torch._C.TensorBase.data_ptr


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go()
    stratalloc.evict()
    # Whatever was handed out or exported ended with its memory.
    assert stratalloc.report()["pinned"] == []


def parameter(size=MIB, seed=0):
    """A parameter of so many bytes, which may leave."""
    module = nn.Module()
    values = torch.arange(size // 4, dtype=torch.float32) * (seed + 1)
    module.weight = nn.Parameter(values.to("cuda"))
    return module.weight


def staying(mib):
    """So much memory that never leaves."""
    with stratalloc.scope("activations", category="activation"):
        return [torch.empty(MIB, dtype=torch.uint8, device="cuda")
                for _ in range(mib)]


def away(*tensors):
    torch.cuda.synchronize()
    stratalloc.evict(tensors)
    assert _tiers.residency(tensors)["device"] == 0


def foreign_copy(to, source, size):
    """A kernel of somebody else's on the current stream."""
    code = runtime.cudaMemcpyAsync(to, source, size, DEVICE_TO_DEVICE,
                                   torch.cuda.current_stream().cuda_stream)
    assert code == 0, code


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


@pytest.mark.parametrize("export", [
    lambda t: t.__dlpack__(),
    lambda t: t.__dlpack__(max_version=(1, 0)),
    lambda t: torch.utils.dlpack.to_dlpack(t),
    lambda t: torch.to_dlpack(t),
], ids=["dlpack", "versioned", "utils", "torch"])
def test_dlpack_keeps_until_it_is_freed(export):
    weight = parameter()
    right = weight.detach().cpu()
    away(weight)
    capsule = export(weight.detach())
    back = torch.from_dlpack(capsule)
    host = torch.empty(MIB // 4)
    with evicting():
        other = parameter(4 * MIB, seed=7)  # in handles of its own
        for seed in range(SEEDS // 4):
            simulate.driver().cudasim_set_seed(seed)
            assert runtime.cudaMemcpyAsync(
                original_data_ptr(host), original_data_ptr(back), MIB, TO_HOST,
                torch.cuda.current_stream().cuda_stream) == 0
            torch.cuda.synchronize()
            assert torch.equal(host, right)
            other.detach().add_(1)
    assert stratalloc.report()["pinned"] == [
        {"owner": "Module", "reason": "exported to other libraries",
         "bytes": MIB}]


def test_a_copy_for_dlpack_leaves_the_original_alone():
    weight = parameter()
    away(weight)
    torch.from_dlpack(weight.detach().__dlpack__(dl_device=(1, 0), copy=True))
    stratalloc.evict()
    assert _tiers.residency(weight)["device"] == 0


def test_what_another_process_is_sent_has_arrived():
    """The event that goes along is one of the sender's current stream."""
    size = 16 * MIB  # several copies, not all of which are over by chance
    host = torch.empty(size // 4)
    for seed in range(SEEDS // 4):
        simulate.driver().cudasim_set_seed(seed)
        weight = parameter(size, seed)
        right = weight.detach().cpu()
        away(weight)
        with torch.cuda.stream(torch.cuda.Stream()):
            sent = weight.untyped_storage()._share_cuda_()
            assert runtime.cudaMemcpyAsync(
                original_data_ptr(host), original_data_ptr(weight), size,
                TO_HOST,
                torch.cuda.current_stream().cuda_stream) == 0
        torch.cuda.synchronize()
        torch.UntypedStorage._release_ipc_counter_cuda(sent[4], sent[5])
        assert torch.equal(host, right)
        del weight
        torch.cuda.ipc_collect()


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI, up to what is used here."""

    _fields_ = [("version", ctypes.c_uint32 * 2), ("previous", ctypes.c_void_p),
                ("allocate", ctypes.c_void_p),
                ("managed_from_object", ctypes.c_void_p),
                ("object_from_managed", ctypes.c_void_p),
                ("tensor_from_object", ctypes.c_void_p),
                ("current_stream", ctypes.c_void_p)]


def exchange():
    take = ctypes.pythonapi.PyCapsule_GetPointer
    take.restype, take.argtypes = ctypes.c_void_p, (ctypes.py_object,
                                                    ctypes.c_char_p)
    return Exchange.from_address(take(torch.Tensor.__dlpack_c_exchange_api__,
                                      b"dlpack_exchange_api"))


@pytest.mark.parametrize("function", ["managed_from_object",
                                      "tensor_from_object"])
def test_the_exchange_api_keeps_too(function):
    weight = parameter()
    away(weight)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        getattr(exchange(), function))
    out = (ctypes.c_uint64 * 16)()
    assert call(weight.detach(), ctypes.addressof(out)) == 0
    assert _tiers.residency(weight)["device"] == MIB
    assert stratalloc.evict() == 0
    if function == "managed_from_object":
        managed = ctypes.cast(out[0], ctypes.POINTER(ctypes.c_uint64))
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed[2])(out[0])


def test_an_export_without_room_raises_and_exports_nothing():
    held = staying(48)
    weight = parameter(8 * MIB)
    away(weight)
    held += staying(12)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        exchange().tensor_from_object)
    out = (ctypes.c_uint64 * 16)()
    for export in (lambda: weight.detach().__dlpack__(),
                   lambda: weight.detach().__cuda_array_interface__,
                   lambda: call(weight.detach(), ctypes.addressof(out))):
        with pytest.raises(torch.OutOfMemoryError, match="an export needs"):
            export()
    assert stratalloc.report()["pinned"] == []
    del held


def test_array_interface_keeps_until_it_is_freed():
    weight = parameter()
    away(weight)
    address, read_only = weight.detach().__cuda_array_interface__["data"]
    assert address == original_data_ptr(weight) and not read_only
    assert stratalloc.evict() == 0
    assert not hasattr(torch.zeros(3), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="requires grad"):
        weight.__cuda_array_interface__  # pylint: disable=pointless-statement


def test_pins_are_counted_and_listed():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda()
    size = sum(p.nbytes for p in model.parameters())
    away(model)
    assert stratalloc.pin(model, by="tables") == size
    assert stratalloc.pin({"some": [model[0]]}) > 0
    assert stratalloc.evict() == 0
    pins = stratalloc.report()["pins"]
    assert pins[0] == {"by": "tables", "bytes": size, "storages": 4}
    assert pins[1]["by"].startswith("test_foreign_uses.py:")
    assert stratalloc.unpin(model) == size
    assert stratalloc.report()["stays"]["pinned by the program"] >= MIB
    assert stratalloc.unpin(model) == sum(
        p.nbytes for p in model[0].parameters())
    assert stratalloc.unpin(model) == 0
    assert stratalloc.report()["pins"] == []
    assert stratalloc.evict() >= size


def test_pins_of_memory_that_ended_are_not_kept():
    """At one address again and again, and at many that are not pinned again."""
    for _ in range(20):
        stratalloc.pin(parameter())
        let_go()
    assert max(map(len, _pin_table.pins.values()), default=0) <= 1
    kept = parameter(4 * KIB)
    stratalloc.pin(kept)
    for _ in range(4):
        stratalloc.pin([parameter(4 * KIB) for _ in range(60)])
        let_go()
    stratalloc.pin(parameter(4 * KIB))
    assert len(_pin_table.pins) < 3 * 60
    assert sum(row["storages"] for row in _pin_table.listed(0)) <= 2
    assert stratalloc.unpin(kept) == 4 * KIB


def test_pins_end_with_their_memory():
    weight = parameter()
    stratalloc.pin(weight)
    address = original_data_ptr(weight)
    del weight
    gc.collect()
    assert stratalloc.report()["pins"] == []
    other = parameter()
    assert original_data_ptr(other) == address
    assert stratalloc.unpin(other) == 0


def test_pins_of_optimizers_and_gradients():
    model = nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    state = sum(t.nbytes for s in optimizer.state.values()
                for t in s.values() if t.is_cuda)
    assert stratalloc.pin([model, optimizer]) == state + 2 * sum(
        p.nbytes for p in model.parameters())
    stratalloc.evict()
    assert _tiers.residency([model, optimizer])["host"] == 0
    stratalloc.unpin([optimizer, model])


def test_a_pin_that_does_not_fit_pins_nothing():
    weights = [parameter(16 * MIB, seed=i) for i in range(5)]
    with pytest.raises(torch.OutOfMemoryError):
        stratalloc.pin(weights)
    assert stratalloc.report()["pins"] == []
    stratalloc.evict()
    assert stratalloc.report()["allocated"]["current"] == 0
    with pytest.raises(TypeError, match="not object"):
        stratalloc.pin(object())


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


def test_what_a_consumer_allocates_through_dlpack_stays():
    api = exchange()
    shape = (ctypes.c_int64 * 1)(MIB)
    # A float32 vector on device 0, as a DLTensor.
    prototype = (ctypes.c_uint64 * 7)(
        0, 2, 1 | 2 << 32 | 32 << 40 | 1 << 48, ctypes.addressof(shape), 0, 0)
    out = ctypes.c_void_p()
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p)(api.allocate)
    assert allocate(ctypes.addressof(prototype), ctypes.addressof(out), None,
                    None) == 0
    try:
        assert stratalloc.evict() == 0
        assert stratalloc.report()["pinned"][0]["bytes"] == 4 * MIB
    finally:
        managed = (ctypes.c_uint64 * 3).from_address(out.value)
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(managed[2])(out.value)
