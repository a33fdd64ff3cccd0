# SPDX-License-Identifier: Apache-2.0
"""memory_management without a GPU: modules go to a spill file and come back,
and what is wrong is said and leaves nothing behind."""

import copy
import gc
import io
import math
import os
import pickle
import subprocess
import sys
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis  # noqa: E402
import hypothesis.strategies as st  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from stratalloc import _spill  # noqa: E402
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management import spilled  # noqa: E402
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402

# torch dresses an optimizer's class when the first one is made.
torch.optim.SGD([nn.Parameter(torch.ones(1))])

_WAIT = 60  # seconds until a thread that hangs fails its test
_DEFAULTS = dict(
    gpu_offload_threshold=.85, gpu_emergency_threshold=.95,
    gpu_reload_threshold=.70, cpu_offload_threshold=.90,
    memory_check_interval=.1, enable_cpu_offload=True,
    enable_disk_offload=True, compress_disk_cache=True,
    eager_offload_on_wrap=True, offload_1d_parameters=False,
    max_disk_usage_gb=50.0, offload_batch_size=10, prefetch_enabled=True)


def _left_behind():
    """What a manager may not leave: threads, descriptors, hooks, methods."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (sorted(one.name for one in threading.enumerate()),
            len(os.listdir("/proc/self/fd")),
            *(len(hooks) for hooks in (
                module._global_forward_hooks, module._global_forward_pre_hooks,
                optimizer._global_optimizer_pre_hooks,
                optimizer._global_optimizer_post_hooks)),
            len(spilled._uses),
            nn.Linear.__call__, nn.Linear._apply, nn.Module.__setattr__,
            torch.Tensor.to, torch.optim.SGD.step)


@pytest.fixture(autouse=True)
def nothing_left():
    before = _left_behind()
    yield
    if _left_behind() != before:
        gc.collect()  # what is only held by a cycle is not left
    assert _left_behind() == before


@pytest.fixture(name="managed")
def _managed():
    """managed(model, **options): an unstarted manager, ended by the test."""
    made = []

    def manage(model, layer_types=None, **options):
        manager = mm.MemoryManager(mm.MemoryConfig(**options))
        made.append(manager)
        manager.wrap_model(model, layer_types)
        return manager

    yield manage
    for manager in made:
        manager.cleanup()


def _model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64),
                         nn.Linear(64, 10))


def _away(model):
    return [name for name, one in model.named_parameters()
            if spilled.is_away(one)]


# Options --------------------------------------------------------------------


def test_defaults_are_the_documents():
    config = mm.MemoryConfig()
    assert {name: getattr(config, name) for name in _DEFAULTS} == _DEFAULTS


def test_presets_lie_on_both_sides_of_the_defaults():
    low, high = (mm.MemoryConfig.for_low_memory(),
                 mm.MemoryConfig.for_high_performance())
    for name in ("gpu_offload_threshold", "gpu_emergency_threshold",
                 "gpu_reload_threshold", "cpu_offload_threshold"):
        assert getattr(low, name) < _DEFAULTS[name] < getattr(high, name)
    assert low.offload_batch_size > 10 > high.offload_batch_size
    assert mm.MemoryConfig.for_low_memory(offload_batch_size=3
                                          ).offload_batch_size == 3


@pytest.mark.parametrize("name, value", [
    ("gpu_offload_threshold", 85), ("gpu_offload_threshold", 0),
    ("cpu_offload_threshold", float("nan")), ("gpu_reload_threshold", "0.5"),
    ("memory_check_interval", 0), ("memory_check_interval", float("inf")),
    ("enable_cpu_offload", 1), ("enable_disk_offload", None),
    ("compress_disk_cache", "lz4"), ("offload_batch_size", 0),
    ("offload_batch_size", 2.5), ("max_disk_usage_gb", -1),
    ("disk_cache_dir", "/no/such/place"), ("vram_cap_gb", 0),
    ("min_free_gpu_memory", 1), ("time_since_forward_threshold", -1),
    ("pin_memory", False), ("prediction_window", 5),
    ("gpu_offload_threshold", .96), ("cpu_offload_threshold", .99)])
def test_a_bad_option_is_named_and_changes_nothing(name, value):
    with pytest.raises(ValueError, match=name):
        mm.MemoryConfig(**{name: value})
    config = mm.MemoryConfig()
    with pytest.raises(ValueError, match=name):
        setattr(config, name, value)
    assert config == mm.MemoryConfig()


def test_there_are_no_other_options():
    with pytest.raises(TypeError, match="gpu_ofload"):
        mm.MemoryConfig(gpu_ofload_threshold=.5)
    with pytest.raises(AttributeError, match="gpu_ofload"):
        mm.MemoryConfig().gpu_ofload_threshold = .5
    with pytest.raises(TypeError, match="MemoryConfig"):
        mm.MemoryManager({"gpu_offload_threshold": .5})


@hypothesis.given(*[st.floats(0.01, 1)] * 3)
def test_reload_never_lies_above_offload(offload, reload, later):
    config = mm.MemoryConfig(gpu_offload_threshold=offload,
                             gpu_emergency_threshold=1,
                             gpu_reload_threshold=reload)
    assert config.gpu_reload_threshold == min(offload, reload)
    config.gpu_offload_threshold = later
    assert config.gpu_reload_threshold == min(offload, reload, later)


# Modules that are away ------------------------------------------------------


def test_a_wrapped_module_is_what_it_was(managed):
    model, plain = _model(), _model()
    names = [name for name, _ in model.named_modules()]
    manager = managed(model)
    assert _away(model) == ["0.weight", "2.weight", "3.weight"]
    layer = model[0]
    assert isinstance(layer, nn.Linear) and isinstance(layer, mm.ModuleWrapper)
    assert type(layer).__name__ == "Linear" and repr(model) == repr(plain)
    assert [name for name, _ in model.named_modules()] == names
    assert not layer._forward_hooks and not layer._forward_pre_hooks
    assert vars(layer).keys() == vars(plain[0]).keys()
    state = model.state_dict()
    assert list(state) == list(plain.state_dict())
    assert all(torch.equal(state[key], value)
               for key, value in plain.state_dict().items())
    del state
    manager.cleanup()
    assert type(layer) is nn.Linear and type(layer.weight) is nn.Parameter
    assert vars(layer.weight) == {}


def test_forward_brings_back_and_values_are_the_same(managed):
    model, plain, batch = _model(), _model(), torch.randn(5, 64)
    manager = managed(model)
    assert torch.equal(model(batch), plain(batch)) and not _away(model)
    moved = sum(layer.offload_all() for layer in (model[0], model[2]))
    assert moved == 2 * 64 * 128 * 4
    info = model[0].get_memory_info()
    assert (info["offloaded_parameters"], info["total_parameters"]) == (1, 2)
    assert info["disk"] == 64 * 128 * 4 and info["host"] == 128 * 4
    assert model[0].load_all() == 64 * 128 * 4 and model[0].load_all() == 0
    assert not model[0].get_memory_info()["is_offloaded"]
    summary = manager.get_memory_summary()
    assert summary["gpu"]["usage_ratio"] == 0 < summary["cpu"]["usage_ratio"]
    assert summary["system"]["managed_modules"] == 3
    assert summary["system"]["total_offloads"] == 3 + 2
    assert summary["disk"]["total"] == 50 << 30 > summary["disk"]["used"] > 0


def test_copies_and_pickles_are_plain_and_whole(managed):
    model, plain = _model(), _model()
    manager = managed(model)
    file = io.BytesIO()
    for made in (
            lambda: copy.deepcopy(model),
            lambda: pickle.loads(pickle.dumps(model)),
            lambda: (torch.save(model, file), file.seek(0),
                     torch.load(file, weights_only=False))[2]):
        manager.offload_all()
        assert _away(model)
        other = made()
        assert type(other[0]) is nn.Linear
        assert type(other[0].weight) is nn.Parameter
        assert all(torch.equal(a, b) for a, b in
                   zip(other.parameters(), plain.parameters(), strict=True))
    manager.offload_all()
    assert torch.equal(copy.deepcopy(model[0].weight), plain[0].weight)
    manager.offload_all()
    assert "MemoryManager" not in repr(pickle.dumps(model))


@pytest.mark.parametrize("foreach", [True, False])
def test_training_with_everything_offloaded_between_is_the_same(
        managed, foreach):
    model, plain = _model(), _model()
    manager = managed(model, offload_1d_parameters=True)
    for one in (model, plain):
        optimizer = torch.optim.AdamW(one.parameters(), lr=.1, foreach=foreach)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = one(torch.randn(5, 64)).square().sum()
            manager.offload_all()
            assert one is plain or not _away(one)  # the graph holds them
            loss.backward()
            del loss
            if one is model:
                assert manager.offload_all() and len(_away(one)) == 6
            optimizer.step()
        assert not _away(plain)
    assert all(torch.equal(a, b) for a, b in
               zip(model.parameters(), plain.parameters(), strict=True))


def test_what_others_hold_stays(managed):
    model = _model()
    manager = managed(model, eager_offload_on_wrap=False)
    view, weight = model[0].weight.detach()[:1], model[2].weight
    manager.offload_all()
    assert _away(model) == ["2.weight", "3.weight"]
    del view
    manager.offload_all()
    assert len(_away(model)) == 3
    with spilled.in_use([weight]):
        assert manager.offload_all() == 0 and not spilled.is_away(weight)
        assert spilled.is_away(model[0].weight)


def test_looking_at_a_parameter_leaves_it_away(managed):
    model = _model()
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
    assert weight[0, 0] == _model()[0].weight[0, 0]
    assert not spilled.is_away(weight)


def test_what_goes_past_python_is_refused_and_reads_nothing(managed):
    model = _model()
    managed(model)
    with torch._C.DisableTorchFunctionSubclass():
        for use in (lambda w: w + torch.ones(128, 64), lambda w: w @ w.t(),
                    lambda w: torch.nn.functional.linear(torch.ones(1, 64), w)):
            with pytest.raises(RuntimeError):
                use(model[0].weight)
    assert spilled.is_away(model[0].weight)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.data())
def test_bits_come_back_whatever_they_are(data):
    dtype = data.draw(st.sampled_from([
        torch.uint8, torch.int64, torch.bool, torch.float16, torch.bfloat16,
        torch.float64, torch.complex64]))
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    count = torch.Size(shape).numel()
    size = count * torch.empty(0, dtype=dtype).element_size()
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        raw = bytes(one & 1 for one in raw)
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).clone()
    tensor = tensor.reshape(shape).clone()
    if len(shape) == 4 and data.draw(st.booleans()):
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    if dtype.is_floating_point and data.draw(st.booleans()):
        tensor = nn.Parameter(tensor)
    before, stride = bytes(tensor.detach().untyped_storage()), tensor.stride()
    kind = type(tensor)
    with _spill.SpillFile(quota=64 << 20, codec="lz4") as file:
        assert spilled.offload(tensor, file) == size
        assert spilled.offload(tensor, file) == 0 and spilled.is_away(tensor)
        assert spilled.bytes_away(tensor) == size
        assert spilled.restore(tensor) == size and type(tensor) is kind
        assert bytes(tensor.detach().untyped_storage()) == before
        assert tensor.stride() == stride and list(tensor.shape) == shape
        assert file.used == 0


def test_modules_that_are_freed_take_their_place_with_them(managed):
    model = _model()
    manager = managed(model)
    used = manager.strategies.stored()
    del model[3]
    gc.collect()
    assert manager.strategies.stored() < used
    assert manager.get_memory_summary()["system"]["managed_modules"] == 2


def test_a_full_cache_loses_nothing_and_says_so_once(managed, caplog):
    model, plain = _model(), _model()
    manager = managed(model, max_disk_usage_gb=40_000 / (1 << 30),
                      compress_disk_cache=False)
    manager.offload_all()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "stays in memory" in caplog.text and len(_away(model)) < 3
    assert manager.strategies.stored() <= 40_000
    assert torch.equal(model(torch.ones(1, 64)), plain(torch.ones(1, 64)))


def test_options_that_change_hold_from_the_next_move_on(managed, tmp_path):
    model = _model()
    manager = managed(model, enable_disk_offload=False,
                      disk_cache_dir=str(tmp_path))
    assert _away(model) == [] and manager.strategies.stored() == 0
    manager.config.enable_disk_offload = True
    manager.config.offload_1d_parameters = True
    manager.offload_all()
    assert len(_away(model)) == 6
    manager.load_all()
    manager.config.offload_1d_parameters = False
    manager.config.compress_disk_cache = False
    manager.offload_all()
    assert len(_away(model)) == 3
    assert manager.strategies.stored() >= 2 * 64 * 128 * 4
    assert os.listdir(tmp_path) == []  # it has no name


# A manager that looks -------------------------------------------------------


def _full(manager, ratio):
    usage = Usage(math.ceil(ratio * (1 << 30)), 1 << 30)
    manager.monitor.cpu = lambda: usage


def test_above_the_threshold_the_coldest_leave_in_batches(managed):
    model = _model()
    manager = managed(model, eager_offload_on_wrap=False, offload_batch_size=1)
    model(torch.ones(1, 64))
    model[0](torch.ones(1, 64))
    _full(manager, .89)
    assert manager.check_memory() == 0
    _full(manager, .9)
    assert manager.check_memory() > 0 and _away(model) == ["2.weight"]
    _full(manager, .99)
    manager.config.time_since_forward_threshold = 1e6
    manager.check_memory()
    assert len(_away(model)) == 3


def test_it_looks_only_while_it_is_started(managed):
    model, looked = _model(), threading.Event()
    manager = managed(model, eager_offload_on_wrap=False,
                      memory_check_interval=.001)
    _full(manager, .99)
    assert not manager.is_running and not _away(model)
    count_out = manager.count_out
    manager.count_out = lambda *args: (count_out(*args), looked.set())
    manager.start()
    manager.start()
    names = [one.name for one in threading.enumerate()]
    assert names.count("stratalloc-memory-monitor") == 1
    assert looked.wait(_WAIT)
    manager.cleanup()
    manager.cleanup()
    assert not _away(model) and not manager.is_running
    assert not [one for one in threading.enumerate()
                if one.name.startswith("stratalloc-")]


def test_what_fails_in_the_thread_is_said_once_and_it_goes_on(managed, caplog):
    model, again = _model(), threading.Semaphore(0)
    manager = managed(model, memory_check_interval=.001)

    def fail():
        again.release()
        raise RuntimeError("the meter is broken")

    manager.monitor.cpu = fail
    manager.start()
    for _ in range(3):
        assert again.acquire(timeout=_WAIT)
    manager.cleanup()
    assert caplog.text.count("the meter is broken") == 1


def test_what_ran_next_is_fetched_meanwhile(managed):
    model, batch = _model(), torch.ones(1, 64)
    manager = managed(model)
    manager.start()
    model(batch)  # in this order
    came, load = threading.Event(), manager.load

    def loaded(record):
        assert threading.current_thread().name == "stratalloc-memory-prefetch"
        load(record)
        came.set()

    manager.load = loaded
    manager.offload_all()
    hook = model[0].register_forward_hook(
        lambda *_: None if came.wait(_WAIT) else pytest.fail("nobody fetched"))
    model[0](batch)
    hook.remove()
    assert _away(model) == ["3.weight"]
    manager.cleanup()
    del load, loaded, manager.load


def test_threads_run_while_another_offloads_and_loads(managed):
    model, plain = _model(), _model()
    manager = managed(model)
    manager.start()
    over, wrong = threading.Event(), []

    def run(seed):
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(60):
                batch = torch.randn(4, 64, generator=made)
                if not torch.equal(model(batch), plain(batch)):
                    wrong.append(seed)

    def move():
        while not over.is_set():
            manager.offload_all()
            manager.load_all()

    mover = threading.Thread(target=move)
    runners = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for one in (mover, *runners):
        one.start()
    for one in runners:
        one.join()
    over.set()
    mover.join()
    assert wrong == []
    assert manager.get_memory_summary()["system"]["total_offloads"] > 3


# Managers and wrong uses ----------------------------------------------------


def test_wrapping_again_adds_and_harms_nothing(managed):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4),
                          nn.LSTM(4, 3))
    manager = managed(model)
    kind = type(model[2])
    assert manager.get_memory_summary()["system"]["managed_modules"] == 1
    manager.wrap_model(model)
    assert type(model[2]) is kind and type(kind.__mro__[2]) is type
    assert kind.__mro__[1:3] == (mm.ModuleWrapper, nn.Linear)
    manager.wrap_model(model, layer_types=[nn.Linear, nn.Conv2d, nn.LSTM])
    assert manager.get_memory_summary()["system"]["managed_modules"] == 3
    assert len(_away(model)) == 2 + 2
    model(torch.ones(1, 1, 4, 4))
    assert manager.wrap_module(model[2], "head") is model[2]
    assert model[2].get_memory_info()["module_id"] == "head"
    assert model[2].offload_all() == 32 * 4


def test_the_last_manager_has_the_module(managed):
    model = _model()
    first = managed(model, enable_disk_offload=False)
    second = managed(model)
    assert first.get_memory_summary()["system"]["managed_modules"] == 0
    assert len(_away(model)) == 3 and first.load_all() == 0
    first.cleanup()
    assert isinstance(model[0], mm.ModuleWrapper) and len(_away(model)) == 3
    assert second.get_memory_summary()["system"]["managed_modules"] == 3


def test_managers_of_parts_go_their_own_ways(managed):
    model = _model()
    manager = managed(model[0], eager_offload_on_wrap=False)
    managed(model[2])
    assert _away(model) == ["2.weight"]
    manager.offload_all()
    assert _away(model) == ["0.weight", "2.weight"]
    manager.load_all()
    assert _away(model) == ["2.weight"]


def test_a_manager_that_nobody_has_ends_with_its_threads():
    model = _model()
    manager = mm.auto_manage_model(model)
    assert len(_away(model)) == 3 and manager.is_running
    del manager
    gc.collect()
    assert type(model[0]) is nn.Linear and not _away(model)


def test_wrong_uses_are_refused_before_anything_is_done(managed, caplog):
    model = _model()
    manager = managed(model, eager_offload_on_wrap=False)
    for bad in (None, "model", torch.ones(2, 2), nn.Linear):
        with pytest.raises(TypeError, match="torch.nn.Module"):
            manager.wrap_module(bad)
        with pytest.raises(TypeError, match="torch.nn.Module"):
            mm.auto_manage_model(bad)
    for bad in ([], nn.functional.linear, [nn.Linear, "Conv2d"], ["Linear"],
                3, int):
        with pytest.raises(TypeError, match="layer_types"):
            manager.wrap_model(_model(), layer_types=bad)
    with pytest.raises(TypeError, match="TorchScript"):
        manager.wrap_module(torch.jit.script(_model()))
    manager.wrap_module(nn.Linear(2, 2), module_id="mine")
    with pytest.raises(TypeError, match="run the model once"):
        manager.wrap_model(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)))
    with pytest.raises(ValueError, match="'0'"):
        manager.wrap_module(nn.Linear(2, 2), module_id="0")
    assert not caplog.records
    manager.wrap_model(nn.ReLU())
    assert "no Linear in this ReLU" in caplog.text
    assert manager.get_memory_summary()["system"]["managed_modules"] == 3
    manager.cleanup()
    for late in (manager.start, lambda: manager.wrap_model(model),
                 lambda: manager.wrap_module(model[0])):
        with pytest.raises(RuntimeError, match="cleanup"):
            late()
    assert manager.offload_all() == manager.load_all() == 0
    assert type(model[0]) is nn.Linear
    assert not hasattr(model[0], "offload_all")


def test_an_exception_in_forward_leaves_the_module_usable(managed):
    model, plain = _model(), _model()
    manager = managed(model)
    with pytest.raises(RuntimeError, match="shape"):
        model[0](torch.ones(1, 3))
    assert spilled._uses == {}
    assert manager.offload_all() > 0 and len(_away(model)) == 3
    assert torch.equal(model(torch.ones(1, 64)), plain(torch.ones(1, 64)))


def test_a_step_that_raises_lets_go_with_its_optimizer(managed):
    model = _model()
    manager = managed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    model(torch.ones(1, 64)).sum().backward()
    manager.offload_all()

    def fail():
        raise KeyError("closure")

    with pytest.raises(KeyError):
        optimizer.step(fail)
    assert not _away(model)
    assert manager.offload_all() == 0  # torch does not say that it is over
    optimizer.step()
    assert manager.offload_all() > 0


def test_a_forked_child_has_plain_bytes_and_no_threads(managed):
    model, plain = _model(), _model()
    manager = managed(model, eager_offload_on_wrap=False)
    manager.start()
    child = os.fork()
    if child == 0:
        manager.offload_all()
        right = (not manager.is_running and
                 torch.equal(model[0].weight, plain[0].weight))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert manager.is_running


_LATE = """
from stratalloc import simulate
simulate.load("64MiB")
import torch
torch.cuda.init()
from stratalloc.compat.memory_management import auto_manage_model
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
batch = torch.ones(2, 64)
with torch.no_grad():
    expected = model(batch)
manager = auto_manage_model(model)
assert manager.get_memory_summary()["system"]["disk"] == 64 * 64 * 4 + 64 * 16
model.to("cuda")
assert manager.offload_all() == 0
assert manager.get_memory_summary()["gpu"]["usage_ratio"] > 0
assert torch.equal(model(batch.cuda()).cpu(), expected)
assert manager.is_running  # to the end of the interpreter
"""


def test_too_late_it_says_what_is_lost_and_works():
    child = subprocess.run([sys.executable, "-c", _LATE], text=True,
                           capture_output=True, timeout=_WAIT,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    assert child.returncode == 0, child.stderr
    assert "modules on a GPU stay there" in child.stderr
    assert child.stderr.count("\n") == 1
