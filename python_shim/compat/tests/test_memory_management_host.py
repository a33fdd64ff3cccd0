# SPDX-License-Identifier: Apache-2.0
"""memory_management without a GPU: modules go to a spill file and come back,
and what is wrong is said and leaves nothing behind."""

import gc
import math
import os
import subprocess
import sys
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import hypothesis  # noqa: E402
import hypothesis.strategies as st  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from managed_models import (  # noqa: E402
    WAIT, away, calls_beside_moves, managed_fixture, nothing_left,
    towers)
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management import _rounds  # noqa: E402
from stratalloc.compat.memory_management import spilled  # noqa: E402
from stratalloc.compat.memory_management import wrapper  # noqa: E402
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402
from stratalloc.compat.memory_management.steps import Steps  # noqa: E402

_DEFAULTS = dict(
    gpu_offload_threshold=.85, gpu_emergency_threshold=.95,
    gpu_reload_threshold=.70, cpu_offload_threshold=.90,
    memory_check_interval=.1, enable_cpu_offload=True,
    enable_disk_offload=True, compress_disk_cache=True,
    eager_offload_on_wrap=True, offload_1d_parameters=False,
    max_disk_usage_gb=50.0, offload_batch_size=10, prefetch_enabled=True)


# Options --------------------------------------------------------------------


def test_defaults_are_the_documents():
    config = mm.MemoryConfig()
    assert {name: getattr(config, name) for name in _DEFAULTS} == _DEFAULTS
    assert _rounds.gpu_threshold(config) == .85
    config.min_free_gpu_memory = .2
    assert _rounds.gpu_threshold(config) == .8
    assert _rounds.gpu_threshold(mm.MemoryConfig.for_high_performance()) == .92


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
    ("memory_check_interval", 1e10), ("max_disk_usage_gb", 1e10),
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
    model, plain = towers(), towers()
    names = [name for name, _ in model.named_modules()]
    manager = managed(model)
    assert away(model) == ["0.weight", "2.weight", "3.weight"]
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
    model, plain, batch = towers(), towers(), torch.randn(5, 64)
    manager = managed(model)
    assert torch.equal(model(batch), plain(batch)) and not away(model)
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


def test_modules_that_are_freed_take_their_place_with_them(managed):
    model = towers()
    manager = managed(model)
    used = manager.strategies.stored()
    del model[3]
    gc.collect()
    assert manager.strategies.stored() < used
    assert manager.get_memory_summary()["system"]["managed_modules"] == 2


def test_a_full_cache_loses_nothing_and_says_so_once(managed, caplog):
    model, plain = towers(), towers()
    manager = managed(model, max_disk_usage_gb=40_000 / (1 << 30),
                      compress_disk_cache=False)
    manager.offload_all()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "stays in memory" in caplog.text and len(away(model)) < 3
    assert manager.strategies.stored() <= 40_000
    assert torch.equal(model(torch.ones(1, 64)), plain(torch.ones(1, 64)))


def test_options_that_change_hold_from_the_next_move_on(managed, tmp_path):
    model = towers()
    manager = managed(model, enable_disk_offload=False,
                      disk_cache_dir=str(tmp_path))
    assert away(model) == [] and manager.strategies.stored() == 0
    manager.config.enable_disk_offload = True
    manager.config.offload_1d_parameters = True
    manager.offload_all()
    assert len(away(model)) == 6
    manager.load_all()
    manager.config.offload_1d_parameters = False
    manager.config.compress_disk_cache = False
    manager.offload_all()
    assert len(away(model)) == 3
    assert manager.strategies.stored() >= 2 * 64 * 128 * 4
    assert os.listdir(tmp_path) == []  # it has no name


# A manager that looks -------------------------------------------------------


def _full(manager, ratio):
    usage = Usage(math.ceil(ratio * (1 << 30)), 1 << 30)
    manager.monitor.cpu = lambda: usage


def test_above_the_threshold_the_coldest_leave_in_batches(managed):
    model = towers()
    manager = managed(model, eager_offload_on_wrap=False, offload_batch_size=1)
    model(torch.ones(1, 64))
    model[0](torch.ones(1, 64))
    _full(manager, .89)
    assert manager.check_memory() == 0
    _full(manager, .9)
    assert manager.check_memory() > 0 and away(model) == ["2.weight"]
    _full(manager, .99)
    manager.config.time_since_forward_threshold = 1e6
    manager.check_memory()
    assert len(away(model)) == 3


def test_it_looks_only_while_it_is_started(managed):
    model, looked = towers(), threading.Event()
    manager = managed(model, eager_offload_on_wrap=False,
                      memory_check_interval=.001)
    _full(manager, .99)
    assert not manager.is_running and not away(model)
    count_out = manager.count_out
    manager.count_out = lambda *args: (count_out(*args), looked.set())
    manager.start()
    manager.start()
    names = [one.name for one in threading.enumerate()]
    assert names.count("stratalloc-memory-monitor") == 1
    assert looked.wait(WAIT)
    manager.cleanup()
    manager.cleanup()
    assert not away(model) and not manager.is_running
    assert not [one for one in threading.enumerate()
                if one.name.startswith("stratalloc-")]


def test_what_fails_in_the_thread_is_said_once_and_it_goes_on(managed, caplog):
    model, again = towers(), threading.Semaphore(0)
    manager = managed(model, memory_check_interval=.001)

    def fail():
        again.release()
        raise RuntimeError("the meter is broken")

    manager.monitor.cpu = fail
    manager.start()
    for _ in range(3):
        assert again.acquire(timeout=WAIT)
    manager.cleanup()
    assert caplog.text.count("the meter is broken") == 1


def test_what_ran_next_is_fetched_meanwhile(managed):
    model, batch = towers(), torch.ones(1, 64)
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
        lambda *_: None if came.wait(WAIT) else pytest.fail("nobody fetched"))
    model[0](batch)
    hook.remove()
    assert away(model) == ["3.weight"]
    manager.cleanup()
    del load, loaded, manager.load


def test_threads_run_while_another_offloads_and_loads(managed):
    model, plain = towers(), towers()
    manager = managed(model)
    manager.start()
    calls_beside_moves(manager, threads=4, calls=60, size=(4, 64),
                       same=lambda batch: torch.equal(model(batch),
                                                      plain(batch)))
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
    assert len(away(model)) == 2 + 2
    model(torch.ones(1, 1, 4, 4))
    assert manager.wrap_module(model[2], "head") is model[2]
    assert model[2].get_memory_info()["module_id"] == "head"
    assert model[2].offload_all() == 32 * 4


def test_the_last_manager_has_the_module(managed):
    model = towers()
    first = managed(model, enable_disk_offload=False)
    second = managed(model)
    assert first.get_memory_summary()["system"]["managed_modules"] == 0
    assert len(away(model)) == 3 and first.load_all() == 0
    first.cleanup()
    assert isinstance(model[0], mm.ModuleWrapper) and len(away(model)) == 3
    assert second.get_memory_summary()["system"]["managed_modules"] == 3


def test_managers_of_parts_go_their_own_ways(managed):
    model = towers()
    manager = managed(model[0], eager_offload_on_wrap=False)
    managed(model[2])
    assert away(model) == ["2.weight"]
    manager.offload_all()
    assert away(model) == ["0.weight", "2.weight"]
    manager.load_all()
    assert away(model) == ["2.weight"]


def test_a_manager_that_nobody_has_ends_with_its_threads():
    model = towers()
    manager = mm.auto_manage_model(model)
    assert len(away(model)) == 3 and manager.is_running
    del manager
    gc.collect()
    assert type(model[0]) is nn.Linear and not away(model)


def test_wrong_uses_are_refused_before_anything_is_done(managed, caplog):
    model = towers()
    manager = managed(model, eager_offload_on_wrap=False)
    for bad in (None, "model", torch.ones(2, 2), nn.Linear):
        with pytest.raises(TypeError, match="torch.nn.Module"):
            manager.wrap_module(bad)
        with pytest.raises(TypeError, match="torch.nn.Module"):
            mm.auto_manage_model(bad)
    for bad in ([], nn.functional.linear, [nn.Linear, "Conv2d"], ["Linear"],
                3, int):
        with pytest.raises(TypeError, match="layer_types"):
            manager.wrap_model(towers(), layer_types=bad)
    with pytest.raises(TypeError, match="TorchScript"):
        manager.wrap_module(torch.jit.script(towers()))
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
    model, plain = towers(), towers()
    manager = managed(model)
    with pytest.raises(RuntimeError, match="shape"):
        model[0](torch.ones(1, 3))
    assert spilled._uses == {}
    assert manager.offload_all() > 0 and len(away(model)) == 3
    assert torch.equal(model(torch.ones(1, 64)), plain(torch.ones(1, 64)))


def test_a_step_that_raises_lets_go_with_its_optimizer(managed):
    model = towers()
    manager = managed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    model(torch.ones(1, 64)).sum().backward()
    manager.offload_all()

    def fail():
        raise KeyError("closure")

    with pytest.raises(KeyError):
        optimizer.step(fail)
    assert not away(model)
    assert manager.offload_all() == 0  # torch does not say that it is over
    optimizer.step()
    assert manager.offload_all() > 0


def test_a_step_keeps_what_its_closure_gives_a_gradient(managed):
    layer = nn.Linear(64, 64)
    manager = managed(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=.1)

    def closure():
        assert layer.weight.grad is None
        assert manager.offload_all() == 0
        layer(torch.ones(1, 64)).sum().backward()
        assert manager.offload_all() == 0

    optimizer.step(closure)
    assert manager.offload_all() == 64 * 64 * 4


def test_what_comes_after_cleanup_leaves_nothing(managed):
    model, plain = towers(), towers()
    manager = managed(model, eager_offload_on_wrap=False)
    record = manager.records()[0]
    manager.cleanup()
    # As threads that began before it: one offloads, one was about to wrap.
    assert manager.offload(record) == 0
    record = wrapper.Managed(manager, model[0], "late")
    manager.config.eager_offload_on_wrap = True
    manager._begin([record])
    assert not away(model) and not record.away
    assert manager.strategies._files == []
    assert torch.equal(model(torch.ones(1, 64)), plain(torch.ones(1, 64)))


class _Final(nn.Linear):
    def __init_subclass__(cls):
        raise TypeError("nobody derives from this")


class _Strict(nn.Linear):
    def __setattr__(self, name, value):
        if name == "__class__":
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_model_is_wrapped_as_a_whole_or_not_at_all(managed):
    manager = mm.MemoryManager()
    model = nn.Sequential(nn.Linear(4, 4), _Final(4, 4), nn.Linear(4, 4))
    with pytest.raises(TypeError, match="_Final cannot be wrapped"):
        manager.wrap_model(model)
    # So if it is only found out while they are wrapped.
    model[1], refuse = nn.Linear(4, 4), manager._wrap

    def wrap(module, *rest):
        if module is model[2]:
            raise TypeError("layout")
        return refuse(module, *rest)

    manager._wrap = wrap
    with pytest.raises(TypeError, match="layout"):
        manager.wrap_model(model)
    del manager._wrap, refuse, wrap
    assert not any(isinstance(one, mm.ModuleWrapper) for one in model)
    assert manager.records() == []
    strict = _Strict(4, 4)
    manager.wrap_module(strict)
    assert isinstance(strict, mm.ModuleWrapper) and away(strict) == ["weight"]
    manager.cleanup()
    assert type(strict) is _Strict


def test_a_thread_that_has_ended_is_not_said_to_run(managed):
    manager = managed(towers())
    manager.start()
    assert manager.is_running
    manager._workers[0].stop()  # the one that looks
    assert not manager.is_running


def test_steps_hooks_are_counted_by_many_threads():
    from torch.optim import optimizer

    made = Steps()
    made.begin()
    register = optimizer.register_optimizer_step_pre_hook
    inside = []

    def slow(hook):
        other = threading.Thread(target=lambda: inside.append(
            made.lock.acquire(blocking=False)))
        other.start()
        other.join()
        return register(hook)

    made.end()
    optimizer.register_optimizer_step_pre_hook = slow
    try:
        made.begin()
    finally:
        optimizer.register_optimizer_step_pre_hook = register
    assert inside == [False]
    made.end()
    assert made._handles == []


def test_a_forked_child_waits_for_nobody_and_is_quiet(capfd, caplog):
    model = towers()
    manager = mm.MemoryManager()
    manager.wrap_model(model)
    manager.strategies._lock.acquire()  # as a thread that the child lacks
    child = os.fork()
    if child == 0:
        manager.get_memory_summary()
        del manager
        gc.collect()
        os._exit(0 if away(model) and not caplog.records else 1)
    manager.strategies._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    manager.cleanup()
    assert torch.equal(model[0].weight, towers()[0].weight)
    assert capfd.readouterr() == ("", "")


def test_a_forked_child_has_plain_bytes_and_no_threads(managed):
    model, plain = towers(), towers()
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
                           capture_output=True, timeout=WAIT,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
    assert child.returncode == 0, child.stderr
    assert "modules on a GPU stay there" in child.stderr
    assert child.stderr.count("\n") == 1
