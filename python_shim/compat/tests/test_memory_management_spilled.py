# SPDX-License-Identifier: Apache-2.0
"""memory_management without a GPU, the tensors: whoever has them and however
they are read they are right, or it raises, and nothing crashes or is lost."""

import copy
import gc
import io
import os
import pickle
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis  # noqa: E402
import hypothesis.strategies as st  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

from managed_models import (  # noqa: E402
    WAIT, away, managed_fixture, nothing_left, towers)
from stratalloc._tiering import spill as _spill  # noqa: E402
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management import _earlier  # noqa: E402
from stratalloc.compat.memory_management import spilled  # noqa: E402
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402

class _Owner:
    closed = False
    bytes_read = 0


_OWNER = _Owner()


def test_copies_and_pickles_are_plain_and_whole(managed):
    model, plain = towers(), towers()
    manager = managed(model)
    file = io.BytesIO()
    for made in (
            lambda: copy.deepcopy(model),
            lambda: pickle.loads(pickle.dumps(model)),
            lambda: (torch.save(model, file), file.seek(0),
                     torch.load(file, weights_only=False))[2]):
        manager.offload_all()
        assert away(model)
        other = made()
        assert type(other[0]) is nn.Linear
        assert type(other[0].weight) is nn.Parameter
        assert all(torch.equal(a, b) for a, b in
                   zip(other.parameters(), plain.parameters(), strict=True))
    manager.offload_all()
    assert torch.equal(copy.deepcopy(model[0].weight), plain[0].weight)
    manager.offload_all()
    assert "MemoryManager" not in repr(pickle.dumps(model))


def test_what_others_hold_stays(managed):
    model = towers()
    manager = managed(model, eager_offload_on_wrap=False)
    view, weight = model[0].weight.detach()[:1], model[2].weight
    manager.offload_all()
    assert away(model) == ["2.weight", "3.weight"]
    del view
    manager.offload_all()
    assert len(away(model)) == 3
    with spilled.in_use([weight]):
        assert manager.offload_all() == 0 and not spilled.is_away(weight)
        assert spilled.is_away(model[0].weight)


def test_looking_at_a_parameter_leaves_it_away(managed):
    model = towers()
    managed(model)
    weight = model[0].weight
    torch.optim.SGD(model.parameters(), lr=1).zero_grad()
    assert weight.grad is None and weight.requires_grad and weight.is_leaf
    assert weight.dtype == torch.float32 and weight.device.type == "cpu"
    assert weight.shape == weight.size() == (128, 64) and len(weight) == 128
    assert weight.size(1) == weight.stride()[0] == 64 and weight.ndim == 2
    assert weight.numel() * weight.element_size() == weight.nbytes == 32768
    assert weight.is_contiguous() and weight.storage_offset() == 0
    assert spilled.is_away(weight)
    assert weight[0, 0] == towers()[0].weight[0, 0]
    assert not spilled.is_away(weight)


# What is raised names the manager and a call that helps.
_OFFLOADED = r"shape \(.*its MemoryManager offloaded it.*call load_all\(\)"

_ACCESSES = (
    lambda w: w + torch.ones(128, 64), lambda w: w @ w.t(), torch.sum,
    torch.norm, torch.amax, torch.var, lambda w: w.abs().sum(),
    lambda w: w.detach().clone(),
    lambda w: nn.functional.linear(torch.ones(1, 64), w),
    lambda w: w.detach()[0, 0].item(), lambda w: w.detach().numpy(),
    lambda w: w.data_ptr(), lambda w: w.add_(1),
    lambda w: w.copy_(torch.ones(128, 64)), lambda w: w.normal_(),
    lambda w: w.__setitem__(0, 1), torch.Tensor.zero_, lambda w: w.fill_(2),
    lambda w: torch.save(w.detach(), io.BytesIO()))


def test_access_past_python_raises_and_leaves_the_bytes(managed):
    model = towers()
    managed(model)
    weight = model[0].weight
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        for access in _ACCESSES:
            with pytest.raises(RuntimeError, match=_OFFLOADED):
                access(weight)
        assert weight.stride() == (64, 1) and weight.is_contiguous()
    assert spilled.is_away(weight)
    assert torch.equal(weight, towers()[0].weight)
    called = torch.func.functional_call(
        model, dict(model.named_parameters()), (torch.ones(1, 64),))
    assert torch.equal(called, towers()(torch.ones(1, 64)))


def _gradient(forward, held):
    return torch.func.grad(lambda held: forward(held).sum())(held)


def _pulled_back(forward, held):
    result, pull = torch.func.vjp(forward, held)
    return pull(torch.ones_like(result))


@pytest.mark.parametrize("transform", [_gradient, _pulled_back])
def test_transform_of_offloaded_parameters_raises_until_loaded(
        managed, transform):
    def transformed(model):
        return torch.utils._pytree.tree_leaves(transform(
            lambda held: torch.func.functional_call(
                model, held, (torch.ones(1, 64),)),
            dict(model.named_parameters())))

    model = towers()
    manager = managed(model)
    with pytest.raises(RuntimeError, match=_OFFLOADED):
        transformed(model)
    manager.load_all()
    assert all(torch.equal(a, b) for a, b in zip(
        transformed(model), transformed(towers()), strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_of_offloaded_parameters_raises_until_loaded(managed):
    model, batch = towers(), torch.ones(1, 64)
    manager = managed(model)
    scripted = torch.jit.script(model)
    with pytest.raises(RuntimeError, match=_OFFLOADED):
        scripted(batch)
    manager.load_all()
    assert torch.equal(scripted(batch), towers()(batch))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trace_of_offloaded_parameters_is_as_plain(managed):
    model, batch = towers(), torch.ones(1, 64)
    manager = managed(model)
    traced = torch.jit.trace(model, batch)
    assert manager.offload_all() == 0  # the trace holds them
    assert torch.equal(traced(batch), towers()(batch))


@pytest.fixture(name="group")
def group_fixture():
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("options", [
    {}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}])
def test_data_parallel_of_offloaded_buffers_is_as_plain(
        managed, group, options):
    plain = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    model, batch = copy.deepcopy(plain), torch.randn(4, 64)
    manager = managed(model, (nn.Linear, nn.BatchNorm1d),
                      offload_1d_parameters=True)
    mean = model[1].running_mean
    both = [nn.parallel.DistributedDataParallel(one, **options)
            for one in (model, plain)]
    for _ in range(2):
        manager.offload_all()
        assert spilled.is_away(mean)
        made = [one(batch) for one in both]
        assert torch.equal(*made)
        for one in made:
            one.square().sum().backward()
        del one, made
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(
        model.parameters(), plain.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(
        model.buffers(), plain.buffers(), strict=True))
    manager.cleanup()


def test_averaged_model_of_offloaded_parameters_is_as_plain(managed):
    model, plain = towers(), towers()
    manager = managed(model)
    averages = [torch.optim.swa_utils.AveragedModel(one)
                for one in (model, plain)]
    for _ in range(2):
        manager.offload_all()
        for average, one in zip(averages, (model, plain), strict=True):
            average.update_parameters(one)
    assert all(torch.equal(a, b) for a, b in zip(
        *(one.parameters() for one in averages), strict=True))


def test_integers_and_single_numbers_stay(managed):
    layer = nn.Linear(1, 1)
    layer.register_buffer("counts", torch.ones(4, 4, dtype=torch.int64))
    layer.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool))
    layer.register_buffer("shared", torch.ones(4, 4))
    layer.register_buffer("mine", torch.ones(4, 4, dtype=torch.complex64))
    array = layer.shared.numpy()  # which has its address
    layer.register_buffer("theirs", torch.from_numpy(array.copy()))
    managed(layer)
    assert spilled.is_away(layer.mine)
    for stays in (layer.counts, layer.mask, layer.shared, layer.theirs,
                  layer.weight):
        assert not spilled.is_away(stays)
    array[:] = 5
    assert layer.shared.sum() == 5 * 16


def test_reads_and_writes_beside_a_thread_that_offloads(managed):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2048, 1024, bias=False))
    weight = model[0].weight
    with torch.no_grad():
        weight.fill_(1)
    manager = managed(model, cpu_offload_threshold=1e-6,
                      memory_check_interval=1e-4, compress_disk_cache=False)
    manager.monitor.cpu = lambda: Usage(1 << 30, 1 << 30)
    manager.start()
    batch = torch.ones(1, 2048)
    with torch.no_grad():
        for i in range(1, 51):
            assert weight.sum().item() == i * 2048 * 1024
            assert weight.max().item() == weight.min().item() == i
            weight.add_(1)
            assert weight.square().max() == (i + 1) ** 2
            assert model(batch)[0, 0] == (i + 1) * 2048
    manager.cleanup()
    assert type(weight) is nn.Parameter
    assert manager.get_memory_summary()["system"]["total_offloads"] > 5


def test_a_use_that_began_before_it_was_watched_is_waited_for():
    tensor = torch.ones(64, 64)
    ready, go, moved, end = (threading.Event() for _ in range(4))

    def use(held):
        ready.set()
        go.wait(WAIT)  # as in an operator: here, and the frame has it
        moved.set()
        end.wait(WAIT)

    thread = threading.Thread(target=use, args=(tensor,))
    thread.start()
    assert ready.wait(WAIT)
    with _spill.SpillFile(quota=1 << 20) as file:
        assert _earlier.none_of([tensor, torch.ones(2)], [])[0] == [False, True]
        assert spilled.offload(tensor, file, _OWNER) == 0
        assert spilled.offload(tensor, file, _OWNER) == 0
        go.set()
        assert moved.wait(WAIT)
        end.set()
        thread.join()
        assert spilled.offload(tensor, file, _OWNER) == 64 * 64 * 4
        assert tensor.sum() == 64 * 64
        spilled.unwatch(tensor)
    assert type(tensor) is torch.Tensor and vars(tensor) == {}


def test_what_only_its_module_holds_leaves_at_once_beside_threads(managed):
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(WAIT,))
    thread.start()
    model = towers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=.1)
    managed(model)
    assert away(model) == ["0.weight", "2.weight", "3.weight"]
    end.set()
    thread.join()
    del optimizer


def _taken_over(layer, manager):
    other = mm.MemoryManager()
    other.wrap_module(layer)
    manager.cleanup()
    return layer.weight, other.cleanup


def _taken_over_of_one_that_is_gone(layer, manager):
    other = mm.MemoryManager()
    other.wrap_module(layer)
    return layer.weight, other.cleanup


def _kept(layer, manager):
    return layer.weight, manager.cleanup


def _replaced(layer, manager):
    weight, layer.weight = layer.weight, nn.Parameter(torch.zeros(64, 64))
    return weight, manager.cleanup


@pytest.mark.parametrize("happens", [
    _taken_over, _taken_over_of_one_that_is_gone, _kept, _replaced])
def test_a_file_lives_until_what_is_in_it_has_come_back(happens):
    layer = nn.Linear(64, 64)
    before = layer.weight.detach().clone()
    manager = mm.MemoryManager()
    manager.wrap_module(layer)
    weight, end = happens(layer, manager)
    del layer, manager
    gc.collect()
    end()
    del end
    assert weight.sum().item() == before.sum().item()
    assert torch.equal(weight, before) and type(weight) is nn.Parameter


def test_a_module_that_was_taken_out_while_away_is_whole(managed):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    plain, manager = copy.deepcopy(model), mm.MemoryManager()
    manager.wrap_module(model)
    layer, model[1] = model[1], nn.Identity()
    manager.cleanup()
    assert torch.equal(layer(torch.ones(1, 64)), plain[1](torch.ones(1, 64)))


class _Other(torch.Tensor):
    pass


def test_it_comes_back_whatever_mode_it_is_used_in(managed):
    model, plain, batch = towers(), towers(), torch.ones(2, 64)
    manager = managed(model)
    with torch.inference_mode():
        assert torch.equal(model(batch), plain(batch))
    model(batch).sum().backward()
    manager.offload_all()
    with torch.device("meta"):
        assert torch.equal(model(batch), plain(batch))
    manager.offload_all()
    assert torch.equal(torch.vmap(model)(batch), plain(batch))
    manager.offload_all()
    weight = model[0].weight
    for both in (weight + torch.ones(1).as_subclass(_Other),
                 torch.ones(1).as_subclass(_Other) + weight):
        assert type(both) is _Other and torch.equal(
            both.as_subclass(torch.Tensor), plain[0].weight + 1)
    manager.offload_all()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(batch), plain(batch))
    manager.offload_all()
    assert torch.equal(compiled(batch), plain(batch))
    manager.offload_all()
    assert repr(weight) == repr(plain[0].weight)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        manager.offload_all()
        model.load_state_dict(plain.state_dict())
        model.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.equal(model(batch), plain(batch))


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_bits_come_back_whatever_they_are(data):
    dtype = data.draw(st.sampled_from([
        torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float64,
        torch.complex64]))
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    hypothesis.assume(torch.Size(shape).numel() > 1)
    count = torch.Size(shape).numel()
    size = count * torch.empty(0, dtype=dtype).element_size()
    raw = data.draw(st.binary(min_size=size, max_size=size))
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).clone()
    tensor = tensor.reshape(shape).clone()
    if len(shape) == 4 and data.draw(st.booleans()):
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    if dtype.is_floating_point and data.draw(st.booleans()):
        tensor = nn.Parameter(tensor)
    before, stride = bytes(tensor.detach().untyped_storage()), tensor.stride()
    kind = type(tensor)
    with _spill.SpillFile(quota=64 << 20, codec="lz4") as file:
        assert spilled.offload(tensor, file, _OWNER) == size
        assert spilled.offload(tensor, file, _OWNER) == 0
        assert spilled.is_away(tensor)
        assert spilled.bytes_away(tensor) == size
        assert spilled.restore(tensor) == size
        spilled.unwatch(tensor)
        assert type(tensor) is kind and not vars(tensor)
        assert bytes(tensor.detach().untyped_storage()) == before
        assert tensor.stride() == stride and list(tensor.shape) == shape
        assert file.used == 0


@pytest.mark.parametrize("foreach", [True, False])
def test_training_with_everything_offloaded_between_is_the_same(
        managed, foreach):
    model, plain = towers(), towers()
    manager = managed(model, offload_1d_parameters=True)
    for one in (model, plain):
        optimizer = torch.optim.AdamW(one.parameters(), lr=.1, foreach=foreach)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = one(torch.randn(5, 64)).square().sum()
            manager.offload_all()
            assert one is plain or not away(one)  # the graph holds them
            loss.backward()
            del loss
            if one is model:
                assert manager.offload_all() and len(away(one)) == 6
            optimizer.step()
        assert not away(plain)
    assert all(torch.equal(a, b) for a, b in
               zip(model.parameters(), plain.parameters(), strict=True))


def test_sparse_buffers_are_counted_and_stay(managed):
    layer = nn.Linear(8, 8)
    dense = torch.eye(8)
    layer.register_buffer("pairs", dense.to_sparse())
    layer.register_buffer("rows", dense.to_sparse_csr())
    system = managed(layer).get_memory_summary()["system"]
    assert system["disk"] == 256
    assert system["host"] == 32 + sum(
        one.untyped_storage().nbytes() for one in (
            layer.pairs._indices(), layer.pairs._values(), layer.rows.values(),
            layer.rows.crow_indices(), layer.rows.col_indices()))


def test_what_comes_back_by_a_use_is_counted(managed):
    model = towers()
    manager = managed(model)  # and all are away
    model[2].load_all()
    model(torch.randn(2, 64))
    assert not away(model)
    system = manager.get_memory_summary()["system"]
    assert system["bytes_offloaded"] == system["bytes_loaded"] > 0


class _Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_parametrized_meanwhile_it_is_plain_again(managed):
    model = towers()
    manager = managed(model)
    parametrize.register_parametrization(model[0], "weight", _Twice())
    batch = torch.randn(2, 64)
    expected = model(batch)
    manager.offload_all()
    assert torch.equal(model(batch), expected)
    manager.cleanup()
    assert not isinstance(model[0], mm.ModuleWrapper)
    assert torch.equal(model(batch), expected)
    parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is nn.Linear
    assert torch.equal(model(batch), expected)
