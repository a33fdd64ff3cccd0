# SPDX-License-Identifier: Apache-2.0
"""The category and owner of every kind of tensor, of copies and of gradients.

Sizes are multiples of 512 bytes where a test counts exactly: that is how blocks
are counted.
"""

import copy
import io
import warnings

import pytest

from stratalloc import simulate

simulate.load("128MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.accounts import rows, sums, total  # noqa: E402,F401
from device_nets import (  # noqa: E402
    SIZE, WEIGHT, block_bytes, data, module_with, net)
from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402


# ---- kinds of tensors -------------------------------------------------------


def test_sparse_coo_parameters_and_gradients():
    indices = torch.arange(256, device="cuda").repeat(2, 1)
    values = torch.randn(256, device="cuda")
    model = module_with("SparseCoo", torch.sparse_coo_tensor(
        indices, values, (256, 256), check_invariants=False))
    stratalloc.watch(model)
    inside = (model.weight._indices(), model.weight._values())
    assert total("SparseCoo", "parameter") == block_bytes(*inside)
    table = type("SparseTable", (nn.Embedding,), {})(
        128, SIZE, sparse=True, device="cuda")
    rows_used = torch.arange(64, device="cuda")
    table(rows_used).sum().backward()
    gradient = table.weight.grad
    assert total("SparseTable", "parameter") == 128 * SIZE * 4
    stratalloc.report()
    assert total("SparseTable", "gradient") == block_bytes(
        gradient._indices(), gradient._values())
    optimizer = torch.optim.SparseAdam(table.parameters())
    optimizer.step()
    assert total("SparseTable", "optimizer_state") == 2 * 128 * SIZE * 4


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_sparse_compressed_parameters(layout):
    dense = torch.eye(256, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's: in beta
        tensor = (dense.to_sparse_bsr((2, 2)) if layout == "bsr"
                  else getattr(dense, "to_sparse_" + layout)())
    del dense
    name = "Sparse_" + layout
    model = module_with(name, tensor)
    del tensor
    stratalloc.watch(model)
    weight = model.weight
    inside = ((weight.ccol_indices(), weight.row_indices())
              if layout == "csc"
              else (weight.crow_indices(), weight.col_indices()))
    assert total(name, "parameter") == block_bytes(*inside, weight.values())


def test_quantized_parameters():
    """Scales and zero points of channels are storages beside the weights'."""
    scales = torch.ones(SIZE * 8, device="cuda")
    zeros = torch.zeros(SIZE * 8, device="cuda")
    model = module_with("Quantized", torch._empty_per_channel_affine_quantized(
        (SIZE * 8, SIZE), scales=scales, zero_points=zeros, axis=0,
        dtype=torch.qint8, device="cuda"))
    stratalloc.watch(model)
    assert total("Quantized", "parameter") == (
        SIZE * 8 * SIZE + scales.nbytes + zeros.nbytes)


class Scaled(torch.Tensor):
    """A wrapper subclass: bytes and their scale, as 8-bit weights have."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=torch.float32, device=data.device)

    def __init__(self, data, scale):
        self.data8, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data8", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Scaled(inner["data8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].data8, args[0].scale)
        raise NotImplementedError(func)


def test_wrapper_subclasses_as_parameters_and_state():
    model = module_with("Wrapped", Scaled(
        torch.zeros(SIZE * SIZE, dtype=torch.int8, device="cuda"),
        torch.ones(SIZE * 2, device="cuda")))
    stratalloc.watch(model)
    assert rows("Wrapped") == {("", "parameter"): SIZE * SIZE + SIZE * 8}

    class EightBit(torch.optim.Optimizer):
        """State as 8-bit optimizers keep it: wrappers, and dicts of lists."""

        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter] = {
                        "step": 1, "state1": Scaled(
                            torch.zeros(SIZE * SIZE, dtype=torch.int8,
                                        device="cuda"),
                            torch.ones(SIZE * 2, device="cuda")),
                        "extra": {"qmaps": [torch.ones(256, device="cuda")]}}

    plain = net("EightBitNet", layers=1)
    optimizer = EightBit(plain.parameters())
    plain(data()).sum().backward()
    optimizer.step()
    assert total("EightBitNet", "optimizer_state") == (
        SIZE * SIZE + SIZE * 8 + 1024)
    assert rows("Optimizer.EightBit") == {}


def test_nested_tensors():
    parts = [torch.randn(n * 128, device="cuda") for n in (1, 2, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    size = nested.values().untyped_storage().nbytes()
    offsets = nested.offsets().nbytes
    del parts
    model = type("Nested", (nn.Module,), {"forward": lambda self, x: x})()
    model.register_buffer("ragged", nested)
    del nested
    stratalloc.watch(model)
    assert total("Nested", "buffer") == size + -(-offsets // 512) * 512


def test_shared_storages_count_once():
    """Views of one storage in two modules, two parameters, a buffer."""
    flat = torch.randn(2 * SIZE * SIZE, device="cuda")
    model = type("Shared", (nn.Module,), {"forward": lambda self, x: x})()
    model.first, model.second = nn.Module(), nn.Module()
    model.first.weight = nn.Parameter(flat[:SIZE * SIZE].view(SIZE, SIZE))
    model.second.weight = nn.Parameter(flat[SIZE * SIZE:].view(SIZE, SIZE))
    model.second.register_buffer("all", flat)
    stratalloc.watch(model)
    found = rows("Shared")
    assert sum(found.values()) == 2 * WEIGHT and len(found) == 1, found
    # However often it is looked at.
    assert rows("Shared") == found


# ---- sharded -----------------------------------------------------------------


@pytest.fixture
def alone():
    """A process group of one."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_dtensor_parameters(alone):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cuda", (1,))
    model = net("Distributed")
    for layer in model:
        # Nothing is sent: what a collective holds ends on a thread of its own.
        layer.weight = nn.Parameter(distribute_tensor(
            layer.weight.detach(), mesh, [Shard(0)], src_data_rank=None))
    assert total("Distributed", "parameter") == 2 * WEIGHT
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = distribute_tensor(data(), mesh, [Shard(0)], src_data_rank=None)
    model(x).sum().backward()
    optimizer.step()
    assert total("Distributed", "gradient") == 2 * WEIGHT
    assert total("Distributed", "optimizer_state") == 4 * WEIGHT


def test_fully_sharded_modules(alone):
    from torch.distributed.fsdp import fully_shard

    model = net("Sharded")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        model(data()).sum().backward()
        optimizer.step()
    # The class is FSDP's own, made of ours; the paths keep the name of old.
    name = next(row.name for row in stratalloc.holders().rows
                if "Sharded" in row.name).split(".")[0]
    assert total(name, "gradient") == 2 * WEIGHT
    assert total(name, "optimizer_state") == 4 * WEIGHT
    assert total(name, "parameter") >= 2 * WEIGHT


# ---- copies -----------------------------------------------------------------


def test_a_copy_has_its_own_name():
    """deepcopy makes no module and moves none; its tensors are parameters."""
    model = net("Averaged")
    before = stratalloc.holders(by="category")
    copied = copy.deepcopy(model)
    after = stratalloc.holders(by="category")
    sizes = [{row.name: row.bytes for row in found.rows}
             for found in (before, after)]
    assert sizes[1]["parameter"] - sizes[0]["parameter"] == 2 * WEIGHT
    assert sizes[1].get("unknown", 0) == sizes[0].get("unknown", 0)
    with torch.no_grad():
        for mine, theirs in zip(copied.parameters(), model.parameters()):
            mine.lerp_(theirs, .1)
        copied(data())
    assert total("Averaged#2", "parameter") == 2 * WEIGHT
    assert total("Averaged", "parameter") == 2 * WEIGHT


def test_an_unpickled_model_too():
    model = net("Unpickled", layers=1)
    globals()["Unpickled"] = type(model)
    type(model).__module__ = __name__
    type(model).__qualname__ = "Unpickled"
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    unknown = sum(row.bytes for row in stratalloc.holders().rows
                  if row.category == "unknown")
    loaded = torch.load(file, weights_only=False)
    assert sum(row.bytes for row in stratalloc.holders().rows
               if row.category == "unknown") == unknown
    stratalloc.watch(loaded)
    assert total("Unpickled#2", "parameter") == WEIGHT


def test_averaged_models():
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

    model = net("Swa")
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(.9))
    optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)
    schedule = SWALR(optimizer, swa_lr=.05)
    for _ in range(3):
        model(data()).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        averaged(data())
    assert total("Swa", "parameter") == 2 * WEIGHT
    assert total("AveragedModel.module", "parameter") == 2 * WEIGHT


# ---- gradients that autograd.grad returns -------------------------------------


def test_gradients_that_are_returned():
    model = net("Returned")
    out = model(data()).square().mean()
    gradients = torch.autograd.grad(out, list(model.parameters()))
    found = rows("Returned")
    assert [gradient.nbytes for gradient in gradients] == [WEIGHT] * 2
    assert {key: size for key, size in found.items()
            if key[1] == "gradient"} == {
        (str(i), "gradient"): WEIGHT for i in range(2)}
    del gradients
    # The engine's thread drops what it returned before it takes more work.
    data().requires_grad_().sum().backward()
    assert total("Returned", "gradient") == 0
