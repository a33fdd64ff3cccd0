# SPDX-License-Identifier: Apache-2.0
"""Hooks of MemLord: moves are counted once, and nothing of a hook is left."""

import gc
import pickle

from stratalloc import simulate

simulate.load("256MiB", devices=2)

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from memlord_tensors import (  # noqa: E402,F401
    CPU, CUDA0, CUDA1, MIB, is_counted, left, mib, nothing_is_left)
from stratalloc.compat.memlord import (  # noqa: E402
    MemLord, SnakeHooks, TorchMoveHooks, _creations)

gc.freeze()  # what was imported is no garbage: collections are quick


def test_moves_are_counted_once_by_both_hooks():
    mem = MemLord({})
    with mem.hook_into_torch() as hooks, mem.hook_into_python():
        assert isinstance(hooks, TorchMoveHooks)
        x = mib(4, CUDA0)
        y = x.to(CUDA1, non_blocking=True)
        assert x.to(CUDA0) is x and is_counted(mem, 4, 0, CUDA1)
        torch.cuda.synchronize()
        del x
        torch.cuda.synchronize()
        assert is_counted(mem, 0, 4, CUDA0)
        model = nn.Linear(512, 512, bias=False)
        model.to(CUDA1)
        assert is_counted(mem, 5, 0, CUDA1) and is_counted(mem, 0, 1, CPU)
        model.to(CUDA1)
        assert is_counted(mem, 5, 0, CUDA1)
        del y


def test_torch_hooks_alone_follow_a_model_that_was_named():
    mem = MemLord({})
    model, other = nn.Linear(512, 512, bias=False), nn.Linear(9, 9)
    mem.allocate(model)
    with mem.hook_into_torch():
        other.to(CPU)  # nothing is made
        model.to(CUDA0)
        assert is_counted(mem, 0, 1, CPU) and is_counted(mem, 1, 0, CUDA0)
        with pytest.raises(RuntimeError):
            model.to("cuda:9")
        del model
        assert is_counted(mem, 0, 2)


def test_hooks_end_in_any_order_and_twice():
    before = left()
    one, two = MemLord({}), MemLord({})
    first, second = one.hook_into_python(), two.hook_into_python()
    third, fourth = one.hook_into_torch(), one.hook_into_python()
    assert torch.empty.__name__ == "empty" and torch.empty.__doc__
    assert torch.empty.__wrapped__ is not torch.empty
    first.disable()
    x = torch.empty(MIB // 4)  # the fourth hears it
    assert is_counted(one, 1, 0) and is_counted(two, 1, 0)
    for handle in (fourth, first, third, third):
        handle.disable()
    y = x.clone()
    assert is_counted(one, 1, 0) and is_counted(two, 2, 0)
    del x, y
    assert is_counted(one, 0, 1) and is_counted(two, 0, 2)
    second.disable()
    assert left() == before
    assert isinstance(second, SnakeHooks)


def test_handles_that_nobody_kept_go_with_their_tracker():
    before = left()
    mem = MemLord({})
    mem.hook_into_python()
    mem.hook_into_torch()
    gc.collect()
    x = torch.zeros(MIB // 4)
    assert is_counted(mem, 1, 0)
    kept = mem.hook_into_python()
    del mem
    assert left() == before
    kept.disable()
    del x  # the tracker that counted it is gone
    assert left() == before


def test_what_somebody_put_over_ours_is_left_there():
    mem = MemLord({})
    hooks = mem.hook_into_python()
    ours = torch.add
    torch.add = theirs = lambda *args: ours(*args)
    hooks.disable()
    assert torch.add is theirs
    assert torch.add(torch.ones(1), 1).item() == 2
    assert mem.allocated()[0] == 0
    torch.add = ours.__wrapped__


def test_exceptions_pass_through():
    before = left()
    mem = MemLord({})
    with pytest.raises(ZeroDivisionError), mem.hook_into_torch(), \
            mem.hook_into_python():
        for wrong in (lambda: torch.empty(-1),
                      lambda: torch.ones(2) @ torch.ones(3),
                      lambda: torch.ones(1).to("cuda:9")):
            with pytest.raises(RuntimeError):
                wrong()
        raise ZeroDivisionError
    assert left() == before


def test_replaced_functions_are_still_themselves():
    torch.set_default_device(None)
    mem = MemLord({})

    class Mode(torch.overrides.TorchFunctionMode):
        seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    plain, method = torch.ones, torch.Tensor.add
    with mem.hook_into_python():
        for each in (torch.empty, torch.Tensor.add, torch.fft.fft,
                     torch.Tensor.split):
            assert pickle.loads(pickle.dumps(each)) is each
        with Mode():
            torch.ones(2)
        assert Mode.seen == [plain]  # nothing of ours is seen by a mode
        with torch.device("meta"):
            assert torch.zeros(3).device.type == "meta"
        with torch.device(CUDA1):
            assert torch.zeros(3).device == CUDA1
        with torch._subclasses.fake_tensor.FakeTensorMode():
            fake = torch.empty(MIB) + 1
        assert plain in torch.overrides.get_ignored_functions()
        assert method in torch.overrides.get_testing_overrides()
        assert torch.overrides.is_tensor_method_or_property(method)
        assert torch.vmap(lambda x: x * 2)(torch.ones(3, 2)).sum() == 12
        assert mem.allocated()[0] < MIB
    del fake
    with torch.device(CUDA1):
        assert torch.zeros(3).device == CUDA1


def test_the_wrapped_are_those_that_pytorch_lists():
    factories = _creations.places(True, False)
    for name in ("empty", "zeros", "full", "randn", "arange", "tensor",
                 "rand_like", "sparse_coo_tensor"):
        assert (torch, name) in factories
    deep = _creations.places(False, True)
    assert len(deep) > 900 and not set(factories) & set(deep)
    names = {name for _, name in deep}
    assert not names & {"add_", "__iadd__", "__len__", "__setitem__", "grad"}
