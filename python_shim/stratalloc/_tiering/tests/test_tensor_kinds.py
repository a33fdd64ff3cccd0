# SPDX-License-Identifier: Apache-2.0
"""evict, restore, pin and unpin of tensors that keep their bytes in others.

One process for the file, on the simulated device.
"""


import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go()
    assert stratalloc.report()["pins"] == []


def dense(n=512):
    return torch.arange(n * n, dtype=torch.float32).reshape(n, n)


def cuda(*values):
    return [value.cuda() for value in values]


def sparse(layout):
    if layout is torch.sparse_coo:
        tensor = dense().to_sparse().cuda()
        return tensor, [tensor._indices(), tensor._values()]
    blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    tensor = dense().to_sparse(layout=layout, blocksize=blocks).cuda()
    compressed = ((tensor.crow_indices(), tensor.col_indices())
                  if layout in (torch.sparse_csr, torch.sparse_bsr)
                  else (tensor.ccol_indices(), tensor.row_indices()))
    return tensor, [*compressed, tensor.values()]


def jagged():
    values, offsets = cuda(dense(), torch.tensor([0, 5, 512]))
    return torch.nested.nested_tensor_from_jagged(values, offsets), [
        values, offsets]


def strided_nested():
    tensor = torch.nested.as_nested_tensor([dense(256), dense()]).cuda()
    return tensor, [torch.empty(0, device="cuda").set_(
        tensor.untyped_storage())]


def quantized():
    tensor = torch.quantize_per_tensor(dense(), .1, 0, torch.qint8).cuda()
    return tensor, [torch.empty(0, dtype=torch.int8, device="cuda").set_(
        tensor.untyped_storage())]


def quantized_by_channel():
    scales, zeros = cuda(torch.ones(512), torch.zeros(512))
    tensor = torch._empty_per_channel_affine_quantized(
        (512, 512), scales=scales, zero_points=zeros, axis=0,
        dtype=torch.qint8, device="cuda")
    return tensor, [torch.empty(0, dtype=torch.int8, device="cuda").set_(
        tensor.untyped_storage()), scales, zeros]


def wrapped_twice():
    inside = cuda(dense(), dense() + 1, dense() + 2, dense() + 3)
    return TwoTensor(TwoTensor(*inside[:2]), TwoTensor(*inside[2:])), inside


KINDS = {
    **{str(layout).removeprefix("torch.sparse_"):
       lambda layout=layout: sparse(layout)
       for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc,
                      torch.sparse_bsr, torch.sparse_bsc)},
    **{make.__name__: make
       for make in (jagged, strided_nested, quantized, quantized_by_channel,
                    wrapped_twice)},
}


def tiers(tensors):
    return {tier: size for tier, size in _tiers.residency(tensors).items()
            if size}


def check_moves(named, inside):
    """What is named means these tensors, whose bytes survive."""
    size = sum({tensor.untyped_storage().data_ptr():
                tensor.untyped_storage().nbytes()
                for tensor in inside}.values())
    before = [tensor.cpu() for tensor in inside]
    assert stratalloc.evict(named) >= size
    assert tiers(inside) == {"host": size}
    # Whoever asks, or evicts again, brings nothing back for it.
    assert tiers(named) == {"host": size}
    assert stratalloc.evict(named) == 0
    assert tiers(named) == {"host": size}
    assert stratalloc.restore(named) >= size
    assert tiers(inside) == {"device": size}
    stratalloc.evict(named)
    assert stratalloc.pin(named) == size
    assert tiers(inside) == {"device": size}
    assert stratalloc.evict(named) == 0
    assert stratalloc.unpin(named) == size
    assert stratalloc.evict(named) >= size
    assert all(torch.equal(tensor.cpu(), right)
               for tensor, right in zip(inside, before))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_means_the_tensors_inside_it(kind):
    check_moves(*KINDS[kind]())


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_means_them_too(kind):
    tensor, inside = KINDS[kind]()
    module = nn.Linear(512, 512, device="cuda")
    module.register_buffer("odd", tensor)
    check_moves({"some": [module]}, [*inside, *module.parameters()])


def test_sharded_modules_and_their_optimizers():
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 512, device="cuda")).sum().backward()
        optimizer.step()
        local = [parameter.to_local() for parameter in model.parameters()]
        size = sum(tensor.nbytes for tensor in local)
        assert stratalloc.pin(model) == 2 * size  # with the gradients
        stratalloc.unpin(model)
        optimizer.zero_grad()
        check_moves(model, local)
        state = [tensor for one in optimizer.state.values()
                 for tensor in one.values() if tensor.is_cuda]
        assert stratalloc.pin(optimizer) > 2 * MIB
        assert "host" not in tiers([tensor.to_local() for tensor in state])
        stratalloc.unpin(optimizer)
    finally:
        dist.destroy_process_group()


def test_what_functorch_wraps_is_found():
    weight = nn.Parameter(dense().cuda())
    sizes = []

    def inner(row):
        sizes.append(stratalloc.pin(row))
        sizes.append(stratalloc.unpin(row))
        return (row * row).sum()

    torch.func.vmap(inner)(weight)
    torch.func.grad(inner)(weight)
    assert sizes == [MIB] * 4


def test_overrides_are_not_asked():
    class Narrow(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    weight = dense().cuda()
    check_moves(weight.as_subclass(Narrow), [weight])


def fake():
    with FakeTensorMode():
        return torch.ones(3, device="cuda")


WITHOUT = {
    "meta": (lambda: torch.ones(3, device="meta"), "meta tensor.*to_empty"),
    "fake": (fake, "FakeTensor.*outside of the tracing"),
    "inside": (lambda: TwoTensor(fake(), fake()), "FakeTensor"),
    "functional": (lambda: torch._to_functional_tensor(
        torch.ones(3, device="cuda")), "outside of the tracing"),
    "lazy": (lambda: nn.UninitializedParameter(device="cuda"),
             "not initialised.*run the module"),
}


@pytest.mark.parametrize("kind", WITHOUT)
def test_what_has_no_memory_says_so(kind):
    make, message = WITHOUT[kind]
    tensor = make()
    for verb in (stratalloc.evict, stratalloc.restore, stratalloc.pin,
                 stratalloc.unpin, _tiers.residency):
        with pytest.raises(TypeError, match="^stratalloc: .*" + message):
            verb([tensor])


def test_modules_that_lack_some_memory_move_the_rest():
    """As accelerate leaves them, and torch before to_empty()."""
    module = nn.ModuleList([nn.Linear(512, 512, device="cuda"),
                            nn.Linear(512, 512, device="meta"),
                            nn.LazyLinear(8, device="cuda")])
    here = sum(p.nbytes for p in module[0].parameters())
    assert stratalloc.evict(module) >= here
    assert tiers(module) == {"host": here}
    assert stratalloc.restore(module) >= here
    # A pin would not hold for what comes later.
    with pytest.raises(TypeError, match="meta tensor"):
        stratalloc.pin(module)
    assert stratalloc.report()["pins"] == []
    assert stratalloc.unpin(module) == 0


def test_a_subclass_that_hides_its_tensors_is_named():
    class Opaque(torch.Tensor):
        @staticmethod
        def __new__(cls, inside):
            return torch.Tensor._make_wrapper_subclass(
                cls, inside.shape, dtype=inside.dtype, device=inside.device)

        def __init__(self, inside):
            self.inside = inside

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError(func)

    opaque = Opaque(torch.ones(300, device="cuda"))
    with pytest.raises(TypeError, match="of a Opaque are.*name the tensors"):
        stratalloc.pin(opaque)
    assert stratalloc.pin(opaque.inside) == 1200
    stratalloc.unpin(opaque.inside)


def test_operators_bring_scales_of_channels_back():
    """Kernels read them, and no operand of the operator is a scale."""
    tensor, (_, scales, _) = quantized_by_channel()
    stratalloc.evict()
    assert tiers(scales) == {"host": scales.nbytes}
    tensor.q_per_channel_scales()
    assert tiers(scales) == {"device": scales.nbytes}
