# SPDX-License-Identifier: Apache-2.0
"""Managers of memory_management without a GPU: several on one model, wrong uses,
steps, forks and ends; what is wrong is said and leaves nothing behind."""

import gc
import os
import subprocess
import sys
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from managed_models import (  # noqa: E402
    WAIT, away, managed_fixture, nothing_left, towers)
from stratalloc.compat import memory_management as mm  # noqa: E402
from stratalloc.compat.memory_management import spilled  # noqa: E402
from stratalloc.compat.memory_management import wrapper  # noqa: E402
from stratalloc.compat.memory_management.steps import Steps  # noqa: E402


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
