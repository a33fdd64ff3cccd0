# SPDX-License-Identifier: Apache-2.0
"""memory_management without a GPU: options, modules that go to a spill file and
come back, and the thread that looks."""

import gc
import math
import os
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
from stratalloc.compat.memory_management.monitor import Usage  # noqa: E402

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
