# SPDX-License-Identifier: Apache-2.0
"""What MemLord counts, on two simulated devices: each storage once.

What needs a process of its own is in test_memlord_programs.py.
"""

import gc
import io
import pickle
import threading

from stratalloc import simulate

simulate.load("256MiB", devices=2)

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from memlord_tensors import (  # noqa: E402,F401
    CPU, CUDA0, CUDA1, MIB, is_counted, mib, nothing_is_left)
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402
from stratalloc.compat.memlord import MemLord  # noqa: E402

gc.freeze()  # what was imported is no garbage: collections are quick


def test_importing_made_the_allocator_ours():
    assert stratalloc.is_enabled()


# What is counted


def test_views_and_tied_weights_count_once():
    mem = MemLord({})
    x = mib(4)
    mem.allocate((x, x[:5], x.view(2, -1), x.detach()))
    mem.allocate(x)
    assert mem.allocated() == (4 * MIB, "4 MiB")
    model = nn.ModuleList([nn.Linear(512, 512, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    model.register_buffer("seen", torch.zeros(MIB // 4))
    mem.allocate(model)
    assert is_counted(mem, 6, 0)
    mem.free(x[7:])
    mem.free([model, (x, model)])
    assert is_counted(mem, 0, 6)


def test_devices_are_told_apart():
    mem = MemLord({})
    mem.allocate((mib(1), a := mib(2, CUDA0), b := mib(4, CUDA1)))
    assert [mem.allocated(each)[0] // MIB for each in (
        None, torch.device("cuda"), CUDA0, CUDA1, "cpu", "cuda:1", "cpu:0",
        "cuda:7", "meta")] == [7, 6, 2, 4, 1, 4, 1, 0, 0]
    mem.free((a, b))
    assert [mem.freed(each)[0] // MIB for each in (
        None, torch.device("cuda"), CUDA1, CPU)] == [6, 6, 4, 0]
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
    x = mib(1)
    for junk, named in ((3, "this is a int"), ((x, [x, "text"]), r"\[1\]\[1\]"),
                        ({"x": x}, "dict"), (None, "NoneType"),
                        ((x, torch.eye(3).to_mkldnn()), "_mkldnn")):
        with pytest.raises(TypeError, match=named):
            mem.allocate(junk)
        with pytest.raises(TypeError, match=named):
            mem.free(junk)
    assert is_counted(mem, 0, 0)


def test_manual_accounting_is_the_programs_own():
    mem = MemLord(auto_gc_strategy={})
    x = mib(3)
    mem.allocate(x)
    mem.free(x)
    mem.free(x)  # twice
    assert is_counted(mem, 0, 3)
    mem.allocate(x)  # again, which is meant
    assert is_counted(mem, 3, 3)
    del x  # nobody watches
    assert is_counted(mem, 3, 3)
    y = mib(2)
    mem.free(y)  # never allocated
    mem.free(y)
    del y
    assert is_counted(mem, 3, 5)


def test_a_storage_that_was_resized_is_charged_the_difference():
    mem = MemLord({})
    x = mib(1)
    mem.allocate(x)
    x.untyped_storage().resize_(3 * MIB)
    mem.allocate(x)
    assert is_counted(mem, 3, 0)
    x.untyped_storage().resize_(2 * MIB)
    mem.allocate(x)
    assert is_counted(mem, 2, 1)
    mem.free(x)
    assert is_counted(mem, 0, 3)


def test_reset_clears_numbers_and_keeps_hooks_and_strategy():
    mem = MemLord({(0, 101): {"metric": "freed", "threshold": {"bytes": 1}}},
                  track_callsite=True)
    mem._device_memory_stats = lambda device: (None, None, 0.0)
    with mem.hook_into_python():
        x, y = mib(1), mib(2)
        mem.reset()
        assert is_counted(mem, 0, 0) and mem.top_alloc_site() is None
        z = mib(4)
        del x  # it was in no total any more
        assert is_counted(mem, 4, 1)
        mem.allocate(y)
        assert is_counted(mem, 6, 1)
        mem._device_memory_stats = lambda device: (100 * MIB, 0, 0.0)
        mem.free(z)
    assert is_counted(mem, 2, 0)  # collected: freed begins anew


# What dies is credited


def test_a_storage_is_credited_when_the_last_of_it_goes():
    mem = MemLord(auto_gc_strategy={})
    with mem.hook_into_python(enable_factory_wrappers=False,
                              enable_deep_autowrap=False):
        a = torch.empty(MIB, device=CUDA0, dtype=torch.uint8)
        mem.allocate(a)
        b = a
        del a
        view = b[9:]
        del b
        assert is_counted(mem, 1, 0)
        del view
        assert is_counted(mem, 0, 1)
        c = mib(2)
        mem.allocate(c)
    mem.allocate(c)  # without hooks: what was registered stays so
    del c
    assert is_counted(mem, 0, 3)


def test_a_graph_keeps_what_it_saved():
    mem = MemLord({})
    with mem.hook_into_python():
        x = torch.ones(MIB // 4, requires_grad=True)
        y = x * 2
        loss = (y * y).sum()
        del y
        assert mem.allocated()[0] == 2 * MIB + 4
        loss.backward()  # the graph lets go of it, inside of PyTorch
        assert mem.allocated()[0] == 1 * MIB + 4


def test_cycles_are_credited_when_they_are_collected():
    mem = MemLord({})
    with mem.hook_into_python():
        model = nn.Linear(512, 512, bias=False)
        model.me = [model]
        del model
        assert is_counted(mem, 1, 0)
        gc.collect()
        assert is_counted(mem, 0, 1)


def test_creation_naming_and_freeing_count_once():
    mem = MemLord({})
    with mem.hook_into_python():
        x = torch.zeros((1024, 1024), device=CUDA0)
        mem.allocate((x, x.t()))
        assert is_counted(mem, 4, 0)
        mem.free(x)
        x.view(-1)
        mem.free(x)
        del x
        assert is_counted(mem, 0, 4)


def test_what_functions_make_is_counted_and_views_are_not():
    mem = MemLord({})
    old = torch.ones(MIB // 4)  # before anybody listened
    with mem.hook_into_python():
        for view in (old.view(2, -1), old[3:], old.detach(), old.add_(1),
                     torch.as_tensor(old), nn.Parameter(old),
                     *old.split(MIB // 8), torch.mul(old, 2, out=old)):
            assert is_counted(mem, 0, 0)
        del view
        made = [old + 1, 1 - old, old @ old, old.clone(), torch.relu(old),
                nn.functional.gelu(old), torch.stack([old, old]), old.half(),
                torch.empty_like(old), old.new_empty(MIB // 4),
                torch.fft.fft(old), old[old > 0], old.sort()]
        assert mem.allocated()[0] == sum(
            each.untyped_storage().nbytes()
            for one in made for each in (
                one if isinstance(one, tuple) else [one]))
    assert mem.allocated()[0] > 10 * MIB
    made.clear()
    assert mem.allocated()[0] == 0


def test_what_no_function_made_is_counted_when_it_is_named():
    mem = MemLord({})
    file = io.BytesIO()
    torch.save({"weight": mib(1)}, file)
    file.seek(0)
    with mem.hook_into_python():
        loaded = torch.load(file)
        found = [pickle.loads(pickle.dumps(loaded["weight"])),
                 torch.from_numpy(np.zeros(MIB, "u1")),
                 torch.frombuffer(bytearray(MIB), dtype=torch.uint8)]
        assert is_counted(mem, 0, 0)
        mem.allocate(list(loaded.values()))
        assert is_counted(mem, 1, 0)
        loaded.clear()
        assert is_counted(mem, 0, 1)
        moved = found[0].to(CUDA0)
        assert is_counted(mem, 1, 0, CUDA0)
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
        model = nn.LSTM(128, 128).to(CUDA1)  # with a flat buffer of its own
        head = nn.Linear(128, 4, device=CUDA1)
        with torch.no_grad():
            out, _ = model(torch.ones(3, 128, device=CUDA1))
            y = torch.softmax(head(out), -1)
        del out
        torch.cuda.synchronize(1)
        # Blocks are of whole 512 bytes.
        assert 0 <= (torch.cuda.memory_allocated(1) - before
                     - mem.allocated(CUDA1)[0]) < 512 * 8
        del model, head, y
    assert mem.allocated() == (0, "0 B")


def test_counting_brings_nothing_back():
    mem = MemLord({})
    with mem.hook_into_python():
        held = [torch.zeros(MIB, device=CUDA0) for _ in range(8)]
        torch.cuda.synchronize()
        assert stratalloc.evict(held) == 32 * MIB
        mem.allocate(held)
        mem.free(held[0][9:].view(-1))
        assert _tiers.residency(held)["device"] == 0
        assert is_counted(mem, 28, 4, CUDA0)  # wherever they are, they are allocated
        held.clear()
        assert is_counted(mem, 0, 32, CUDA0)


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


# Lines of code


def test_sites_are_the_first_user_frame():
    mem = MemLord({})
    x = mib(1)
    mem.allocate(x)
    assert mem.top_alloc_site() is None  # off

    def layer():
        return nn.Linear(1024, 1024, bias=False, device=CUDA0)

    with mem.hook_into_python():
        mem.set_callsite_tracking(True)
        held = layer()
        line = layer.__code__.co_firstlineno + 1
        device, site, size = mem.top_alloc_site()
        assert (device, size) == (CUDA0, 4 * MIB)
        assert site.endswith(f"test_memlord.py:{line}")
        assert mem.top_alloc_site(CUDA1) is None
        del held
        device, site, size = mem.top_free_site(torch.device("cuda"))
        assert size == 4 * MIB and "test_memlord.py:" in site
        mem.set_callsite_tracking(False)
        assert mem.top_free_site() is None
