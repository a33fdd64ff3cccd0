# SPDX-License-Identifier: Apache-2.0
"""What MemLord counts, on two simulated devices: each storage once.

What needs a process of its own is in test_memlord_programs.py.
"""

import gc
import io
import os
import pickle
import threading

from stratalloc import simulate

simulate.load("256MiB", devices=2)

# pylint: disable=wrong-import-position
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc import _tiers  # noqa: E402
from stratalloc.compat.memlord import (  # noqa: E402
    MemLord, SnakeHooks, TorchMoveHooks, _creations)

gc.freeze()  # what was imported is no garbage: collections are quick
_MIB = 1 << 20
_CPU = torch.device("cpu")
_CUDA0, _CUDA1 = torch.device("cuda", 0), torch.device("cuda", 1)
_PLACES = [(torch, "empty"), (torch, "add"), (torch.Tensor, "to"),
           (torch.Tensor, "__add__"), (torch.Tensor, "clone"),
           (torch.Tensor, "split"), (torch.nn.functional, "linear"),
           (nn.Module, "to"), (torch.cuda, "synchronize"),
           (torch.cuda.Stream, "synchronize"),
           (torch.cuda.Event, "synchronize"), (torch.fft, "rfft")]


def _mib(count, device=_CPU):
    """A tensor of so many MiB."""
    return torch.empty(count * _MIB, dtype=torch.uint8, device=device)


def _is(mem, allocated, freed, device=None):
    return (mem.allocated(device)[0], mem.freed(device)[0]) == (
        allocated * _MIB, freed * _MIB)


def _left():
    """What a wrong use could leave: threads, descriptors, and attributes."""
    return (sorted(each.name for each in threading.enumerate()),
            len(os.listdir("/proc/self/fd")),
            [(vars(owner).get(name), getattr(owner, name))
             for owner, name in _PLACES])


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()
    before = _left()
    yield
    gc.collect()
    assert _left() == before


def test_importing_made_the_allocator_ours():
    assert stratalloc.is_enabled()


# What is counted


def test_views_and_tied_weights_count_once():
    mem = MemLord({})
    x = _mib(4)
    mem.allocate((x, x[:5], x.view(2, -1), x.detach()))
    mem.allocate(x)
    assert mem.allocated() == (4 * _MIB, "4 MiB")
    model = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    model.register_buffer("seen", torch.zeros(_MIB // 4))
    mem.allocate(model)
    assert _is(mem, 6, 0)
    mem.free(x[7:])
    mem.free([model, (x, model)])
    assert _is(mem, 0, 6)


def test_devices_are_told_apart():
    mem = MemLord({})
    mem.allocate((_mib(1), a := _mib(2, _CUDA0), b := _mib(4, _CUDA1)))
    assert [mem.allocated(each)[0] // _MIB for each in (
        None, torch.device("cuda"), _CUDA0, _CUDA1, "cpu", "cuda:1", "cpu:0",
        "cuda:7", "meta")] == [7, 6, 2, 4, 1, 4, 1, 0, 0]
    mem.free((a, b))
    assert [mem.freed(each)[0] // _MIB for each in (
        None, torch.device("cuda"), _CUDA1, _CPU)] == [6, 6, 4, 0]
    with pytest.raises(RuntimeError, match="gpu"):
        mem.allocated("gpu")


def test_kinds_of_tensors_count_what_they_hold():
    mem = MemLord({})
    dense = torch.eye(64)

    def counted(thing):
        mem.reset()
        mem.allocate(thing)
        return mem.allocated()[0]

    assert counted(dense.to_sparse()) == 64 * (2 * 8 + 4)
    inside = torch.arange(65), torch.arange(64), torch.ones(64)
    assert counted(torch.sparse_csr_tensor(*inside)) == 65 * 8 + 64 * (8 + 4)
    assert counted(torch.sparse_csc_tensor(*inside)) == 65 * 8 + 64 * (8 + 4)
    assert counted(TwoTensor(torch.ones(5), torch.ones(5))) == 2 * 5 * 4
    assert counted(torch.empty(9, device="meta")) == 0
    assert counted(nn.LazyLinear(4)) == 0
    assert counted(torch.empty(0)) == 0
    assert counted(torch.empty(9).as_subclass(
        type("Named", (torch.Tensor,), {}))) == 36
    assert counted(()) == 0


def test_what_has_no_storages_is_named_and_nothing_is_counted():
    mem = MemLord({})
    x = _mib(1)
    for junk, named in ((3, "this is a int"), ((x, [x, "text"]), r"\[1\]\[1\]"),
                        ({"x": x}, "dict"), (None, "NoneType"),
                        ((x, torch.eye(3).to_mkldnn()), "_mkldnn")):
        with pytest.raises(TypeError, match=named):
            mem.allocate(junk)
        with pytest.raises(TypeError, match=named):
            mem.free(junk)
    assert _is(mem, 0, 0)


def test_manual_accounting_is_the_programs_own():
    mem = MemLord(auto_gc_strategy={})
    x = _mib(3)
    mem.allocate(x)
    mem.free(x)
    mem.free(x)  # twice
    assert _is(mem, 0, 3)
    mem.allocate(x)  # again, which is meant
    assert _is(mem, 3, 3)
    del x  # nobody watches
    assert _is(mem, 3, 3)
    y = _mib(2)
    mem.free(y)  # never allocated
    mem.free(y)
    del y
    assert _is(mem, 3, 5)


def test_a_storage_that_was_resized_is_charged_the_difference():
    mem = MemLord({})
    x = _mib(1)
    mem.allocate(x)
    x.untyped_storage().resize_(3 * _MIB)
    mem.allocate(x)
    assert _is(mem, 3, 0)
    x.untyped_storage().resize_(2 * _MIB)
    mem.allocate(x)
    assert _is(mem, 2, 1)
    mem.free(x)
    assert _is(mem, 0, 3)


def test_reset_clears_numbers_and_keeps_hooks_and_strategy():
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}},
                  track_callsite=True)
    mem._device_memory_stats = lambda device: (None, None, 0.0)
    with mem.hook_into_python():
        x, y = _mib(1), _mib(2)
        mem.reset()
        assert _is(mem, 0, 0) and mem.top_alloc_site() is None
        z = _mib(4)
        del x  # it was in no total any more
        assert _is(mem, 4, 1)
        mem.allocate(y)
        assert _is(mem, 6, 1)
        mem._device_memory_stats = lambda device: (100 * _MIB, 0, 0.0)
        mem.free(z)
    assert _is(mem, 2, 0)  # collected: freed begins anew


# What dies is credited


def test_a_storage_is_credited_when_the_last_of_it_goes():
    mem = MemLord(auto_gc_strategy={})
    with mem.hook_into_python(enable_factory_wrappers=False,
                              enable_deep_autowrap=False):
        a = torch.empty(_MIB, device=_CUDA0, dtype=torch.uint8)
        mem.allocate(a)
        b = a
        del a
        view = b[9:]
        del b
        assert _is(mem, 1, 0)
        del view
        assert _is(mem, 0, 1)
        c = _mib(2)
        mem.allocate(c)
    mem.allocate(c)  # without hooks: what was registered stays so
    del c
    assert _is(mem, 0, 3)


def test_a_graph_keeps_what_it_saved():
    mem = MemLord({})
    with mem.hook_into_python():
        x = torch.ones(_MIB // 4, requires_grad=True)
        y = x * 2
        loss = (y * y).sum()
        del y
        assert mem.allocated()[0] == 2 * _MIB + 4
        loss.backward()  # the graph lets go of it, inside of PyTorch
        assert mem.allocated()[0] == 1 * _MIB + 4


def test_cycles_are_credited_when_they_are_collected():
    mem = MemLord({})
    with mem.hook_into_python():
        model = nn.Linear(512, 512, bias=False)
        model.me = [model]
        del model
        assert _is(mem, 1, 0)
        gc.collect()
        assert _is(mem, 0, 1)


def test_creation_naming_and_freeing_count_once():
    mem = MemLord({})
    with mem.hook_into_python():
        x = torch.zeros((1024, 1024), device=_CUDA0)
        mem.allocate((x, x.t()))
        assert _is(mem, 4, 0)
        mem.free(x)
        x.view(-1)
        mem.free(x)
        del x
        assert _is(mem, 0, 4)


def test_what_functions_make_is_counted_and_views_are_not():
    mem = MemLord({})
    old = torch.ones(_MIB // 4)  # before anybody listened
    with mem.hook_into_python():
        for view in (old.view(2, -1), old[3:], old.detach(), old.add_(1),
                     torch.as_tensor(old), nn.Parameter(old),
                     *old.split(_MIB // 8), torch.mul(old, 2, out=old)):
            assert _is(mem, 0, 0)
        del view
        made = [old + 1, 1 - old, old @ old, old.clone(), torch.relu(old),
                nn.functional.gelu(old), torch.stack([old, old]), old.half(),
                torch.empty_like(old), old.new_empty(_MIB // 4),
                torch.fft.fft(old), old[old > 0], old.sort()]
        assert mem.allocated()[0] == sum(
            each.untyped_storage().nbytes()
            for one in made for each in (
                one if isinstance(one, tuple) else [one]))
    assert mem.allocated()[0] > 10 * _MIB
    made.clear()
    assert mem.allocated()[0] == 0


def test_what_no_function_made_is_counted_when_it_is_named():
    mem = MemLord({})
    file = io.BytesIO()
    torch.save({"weight": _mib(1)}, file)
    file.seek(0)
    with mem.hook_into_python():
        loaded = torch.load(file)
        found = [pickle.loads(pickle.dumps(loaded["weight"])),
                 torch.from_numpy(np.zeros(_MIB, "u1")),
                 torch.frombuffer(bytearray(_MIB), dtype=torch.uint8)]
        assert _is(mem, 0, 0)
        mem.allocate(list(loaded.values()))
        assert _is(mem, 1, 0)
        loaded.clear()
        assert _is(mem, 0, 1)
        moved = found[0].to(_CUDA0)
        assert _is(mem, 1, 0, _CUDA0)
    del moved


def test_only_what_was_asked_for_is_heard():
    mem = MemLord({})
    with mem.hook_into_python(enable_deep_autowrap=False):
        x = torch.empty(4)
        y = x + x
        assert mem.allocated()[0] == 16
    with mem.hook_into_python(enable_factory_wrappers=False):
        z = torch.empty(4)
        y = x + x
        assert mem.allocated()[0] == 32
    del y, z


def test_a_step_is_what_the_allocator_counts():
    torch.cuda.init()
    gc.collect()
    before = torch.cuda.memory_allocated(1)
    mem = MemLord({})
    with mem.hook_into_python(), mem.hook_into_torch():
        model = nn.LSTM(128, 128).to(_CUDA1)  # with a flat buffer of its own
        head = nn.Linear(128, 4, device=_CUDA1)
        with torch.no_grad():
            out, _ = model(torch.ones(3, 128, device=_CUDA1))
            y = torch.softmax(head(out), -1)
        del out
        torch.cuda.synchronize(1)
        # Blocks are of whole 512 bytes.
        assert 0 <= (torch.cuda.memory_allocated(1) - before
                     - mem.allocated(_CUDA1)[0]) < 512 * 8
        del model, head, y
    assert mem.allocated() == (0, "0 B")


def test_counting_brings_nothing_back():
    mem = MemLord({})
    with mem.hook_into_python():
        held = [torch.zeros(_MIB, device=_CUDA0) for _ in range(8)]
        torch.cuda.synchronize()
        assert stratalloc.evict(held) == 32 * _MIB
        mem.allocate(held)
        mem.free(held[0][9:].view(-1))
        assert _tiers.residency(held)["device"] == 0
        assert _is(mem, 28, 4, _CUDA0)  # wherever they are, they are allocated
        held.clear()
        assert _is(mem, 0, 32, _CUDA0)


def test_threads_lose_nothing():
    mem = MemLord({}, track_callsite=True)

    def work():
        for count in range(1, 120):
            x = torch.empty(count * 1000, dtype=torch.uint8)
            y = x[1:]
            del x
            (mem.free if count % 2 else mem.allocate)(y)

    with mem.hook_into_python():
        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    total = 8 * 1000 * sum(range(1, 120))
    assert (mem.allocated()[0], mem.freed()[0]) == (0, total)


# Hooks, and that nothing of them is left


def test_moves_are_counted_once_by_both_hooks():
    mem = MemLord({})
    with mem.hook_into_torch() as hooks, mem.hook_into_python():
        assert isinstance(hooks, TorchMoveHooks)
        x = _mib(4, _CUDA0)
        y = x.to(_CUDA1, non_blocking=True)
        assert x.to(_CUDA0) is x and _is(mem, 4, 0, _CUDA1)
        torch.cuda.synchronize()
        del x
        torch.cuda.synchronize()
        assert _is(mem, 0, 4, _CUDA0)
        model = nn.Linear(512, 512, bias=False)
        model.to(_CUDA1)
        assert _is(mem, 5, 0, _CUDA1) and _is(mem, 0, 1, _CPU)
        model.to(_CUDA1)
        assert _is(mem, 5, 0, _CUDA1)
        del y


def test_torch_hooks_alone_follow_a_model_that_was_named():
    mem = MemLord({})
    model, other = nn.Linear(512, 512, bias=False), nn.Linear(9, 9)
    mem.allocate(model)
    with mem.hook_into_torch():
        other.to(_CPU)  # nothing is made
        model.to(_CUDA0)
        assert _is(mem, 0, 1, _CPU) and _is(mem, 1, 0, _CUDA0)
        with pytest.raises(RuntimeError):
            model.to("cuda:9")
        del model
        assert _is(mem, 0, 2)


def test_hooks_end_in_any_order_and_twice():
    before = _left()
    one, two = MemLord({}), MemLord({})
    first, second = one.hook_into_python(), two.hook_into_python()
    third, fourth = one.hook_into_torch(), one.hook_into_python()
    assert torch.empty.__name__ == "empty" and torch.empty.__doc__
    assert torch.empty.__wrapped__ is not torch.empty
    first.disable()
    x = torch.empty(_MIB // 4)  # the fourth hears it
    assert _is(one, 1, 0) and _is(two, 1, 0)
    for handle in (fourth, first, third, third):
        handle.disable()
    y = x.clone()
    assert _is(one, 1, 0) and _is(two, 2, 0)
    del x, y
    assert _is(one, 0, 1) and _is(two, 0, 2)
    second.disable()
    assert _left() == before
    assert isinstance(second, SnakeHooks)


def test_handles_that_nobody_kept_go_with_their_tracker():
    before = _left()
    mem = MemLord({})
    mem.hook_into_python()
    mem.hook_into_torch()
    gc.collect()
    x = torch.zeros(_MIB // 4)
    assert _is(mem, 1, 0)
    kept = mem.hook_into_python()
    del mem
    assert _left() == before
    kept.disable()
    del x  # the tracker that counted it is gone
    assert _left() == before


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
    before = _left()
    mem = MemLord({})
    with pytest.raises(ZeroDivisionError), mem.hook_into_torch(), \
            mem.hook_into_python():
        for wrong in (lambda: torch.empty(-1),
                      lambda: torch.ones(2) @ torch.ones(3),
                      lambda: torch.ones(1).to("cuda:9")):
            with pytest.raises(RuntimeError):
                wrong()
        raise ZeroDivisionError
    assert _left() == before


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
        with torch.device(_CUDA1):
            assert torch.zeros(3).device == _CUDA1
        with torch._subclasses.fake_tensor.FakeTensorMode():
            fake = torch.empty(_MIB) + 1
        assert plain in torch.overrides.get_ignored_functions()
        assert method in torch.overrides.get_testing_overrides()
        assert torch.overrides.is_tensor_method_or_property(method)
        assert torch.vmap(lambda x: x * 2)(torch.ones(3, 2)).sum() == 12
        assert mem.allocated()[0] < _MIB
    del fake
    with torch.device(_CUDA1):
        assert torch.zeros(3).device == _CUDA1


def test_the_wrapped_are_those_that_pytorch_lists():
    factories = _creations.places(True, False)
    for name in ("empty", "zeros", "full", "randn", "arange", "tensor",
                 "rand_like", "sparse_coo_tensor"):
        assert (torch, name) in factories
    deep = _creations.places(False, True)
    assert len(deep) > 900 and not set(factories) & set(deep)
    names = {name for _, name in deep}
    assert not names & {"add_", "__iadd__", "__len__", "__setitem__", "grad"}


# Lines of code


def test_sites_are_the_first_user_frame():
    mem = MemLord({})
    x = _mib(1)
    mem.allocate(x)
    assert mem.top_alloc_site() is None  # off

    def layer():
        return nn.Linear(1024, 1024, bias=False, device=_CUDA0)

    with mem.hook_into_python():
        mem.set_callsite_tracking(True)
        held = layer()
        line = layer.__code__.co_firstlineno + 1
        device, site, size = mem.top_alloc_site()
        assert (device, size) == (_CUDA0, 4 * _MIB)
        assert site.endswith(f"test_memlord.py:{line}")
        assert mem.top_alloc_site(_CUDA1) is None
        del held
        device, site, size = mem.top_free_site(torch.device("cuda"))
        assert size == 4 * _MIB and "test_memlord.py:" in site
        mem.set_callsite_tracking(False)
        assert mem.top_free_site() is None
