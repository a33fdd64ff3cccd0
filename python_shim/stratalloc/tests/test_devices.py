# SPDX-License-Identifier: Apache-2.0
"""Four devices of which the program uses the last: the others stay untouched.

A device is opened by its first allocation and by nobody else, and no call makes
a context on a device that the program does not use. Each program is a process
of its own, since contexts stay to its end.
"""

import os
import textwrap

from bazel import programs

LOAD = 'simulate.load("64MiB", devices=4, mode="async")'
HEAD = """
import atexit, ctypes, threading
from stratalloc import simulate
LOAD
import torch, stratalloc
driver = ctypes.CDLL("libcuda.so.1")
def active():
    found = []
    for device in range(4):
        flags, state = ctypes.c_uint(), ctypes.c_int()
        assert driver.cuDevicePrimaryCtxGetState(
            device, ctypes.byref(flags), ctypes.byref(state)) == 0
        found += [device] * state.value
    return found
def on_a_thread(function):
    wrong = []
    def run():
        try:
            function()
        except BaseException as error:
            wrong.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not wrong, wrong
def opened():
    return [d for d in range(4) if stratalloc.report(d)["opened"]]
"""


def run(program, load=LOAD, **environment):
    head = HEAD.replace("LOAD", load)
    done = programs.run("-c", head + textwrap.dedent(program), merged=True,
                        env=os.environ | environment)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_only_the_device_in_use_has_a_context():
    run("""
    assert stratalloc.enable(host_budget="1GiB", gpu_offload_threshold=.6,
                             gpu_reload_threshold=.3)
    # Registered before CUDA is there: runs after everything else at exit.
    def at_the_end():
        assert active() == [3], active()
        print("ended well", flush=True)
    atexit.register(at_the_end)
    def expect(step, contexts=[3]):
        assert active() == contexts, (step, active())
    torch.cuda.init()
    expect("init", [])
    stratalloc.report(0), stratalloc.report(3)
    torch.cuda.memory_stats(2), torch.cuda.empty_cache()
    expect("questions before there is anything", [])
    torch.cuda.set_device(3)
    expect("set_device")
    x = torch.ones(1 << 19, device="cuda:3")
    expect("the first allocation")
    ws = [torch.nn.Parameter(torch.ones(1 << 18, device="cuda:3"))
          for _ in range(10)]
    on_a_thread(lambda: ws.pop())
    expect("a free on a thread of its own")
    moved = []
    on_a_thread(lambda: moved.append(stratalloc.evict(ws[0])))
    assert moved[0] > 0
    expect("evict on a thread of its own")
    assert stratalloc.evict() > 0
    expect("evict everything")
    on_a_thread(lambda: stratalloc.restore(ws[0]))
    expect("restore on a thread of its own")
    # Used some rounds and then no more, above the threshold: the engine's own
    # thread evicts it, as operators go by.
    idle = [torch.nn.Parameter(torch.ones(1 << 18, device="cuda:3"))
            for _ in range(20)]
    busy = [torch.nn.Parameter(torch.ones(1 << 18, device="cuda:3"))
            for _ in range(20)]
    for _ in range(5):
        for w in idle + busy:
            w[:8].sum()
    before = stratalloc.report(3)["handles"]["evicted"]
    evicted = 0
    for _ in range(3000):
        for w in busy:
            w[:8].sum()
        grown = torch.nn.Parameter(torch.ones(1 << 18, device="cuda:3"))
        evicted = stratalloc.report(3)["handles"]["evicted"] - before
        if evicted:
            break
    assert evicted, stratalloc.report(3)
    expect("background eviction")
    # More than the device holds: malloc and guard evict.
    more = [torch.nn.Parameter(torch.ones(1 << 18, device="cuda:3"))
            for _ in range(50)]
    total = sum(w.sum() for w in more + idle + busy).item()
    assert total == 90 << 18, total
    expect("malloc and guard")
    on_a_thread(lambda: [w.sum().item() for w in more])
    expect("operators of another thread")
    for device in range(4):
        stratalloc.report(device), stratalloc.memory_summary(device)
        torch.cuda.memory_stats(device), torch.cuda.memory_summary(device)
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_accumulated_memory_stats(device)
        torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        torch.cuda.get_per_process_memory_fraction(device)
        stratalloc.stats(device)
        expect(f"questions about {device}")
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory_snapshot()
    torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    expect("snapshot and history")
    torch.cuda.empty_cache()
    expect("empty_cache")
    with torch.no_grad():
        torch._foreach_add_(more, 1.0)
    expect("a list operator")
    del more, grown, idle, busy, w
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    torch.cuda.synchronize()
    assert y.sum().item() == 2 << 19
    expect("a graph")
    del graph, y
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        z = torch.ones(1 << 18, device="cuda:3")
    del z, pool
    expect("a pool")
    stratalloc.pin(ws[0]), stratalloc.unpin(ws[0])
    expect("pins")
    assert opened() == [3], opened()
    assert not simulate.violations(), simulate.violations()
    del x, ws
    torch.cuda.empty_cache()
    expect("everything is freed")
    """)


def test_a_report_of_an_unopened_device_has_the_same_keys():
    run("""
    assert stratalloc.enable(host_budget="64MiB", gpu_limit="48MiB")
    torch.cuda.set_device(3)
    kept = torch.ones(1 << 18, device="cuda:3")
    one, none = stratalloc.report(3), stratalloc.report(1)
    assert one["opened"] is True and none["opened"] is False
    def shape(value):
        return ({k: shape(v) for k, v in value.items()}
                if isinstance(value, dict) else type(value))
    for key in ("stays", "pinned", "layers", "opened"):
        assert type(one.pop(key)) is type(none.pop(key)), key
    assert shape(one) == shape(none)
    assert none["device_capacity"] == 64 << 20, none
    assert none["gpu_limit"] == 48 << 20
    for name in ("allocated", "reserved", "active", "requested"):
        assert none[name] == {"current": 0, "peak": 0}
    assert none["live"] == 0 and none["reservation"] == {"lo": 0, "hi": 0}
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.memory_stats(1)["reserved_bytes.all.peak"] == 0
    assert "device 1" in stratalloc.memory_summary(1)
    assert stratalloc.evict(device=1) == stratalloc.restore(device=1) == 0
    # As under PyTorch's allocator this makes a context, but opens nothing.
    free, total = torch.cuda.mem_get_info(2)
    assert free <= total == 48 << 20  # as gpu_limit allows
    assert 2 in active() and opened() == [3]
    """)


def test_what_is_set_before_a_device_is_opened_holds():
    run("""
    assert stratalloc.enable(host_budget="64MiB")
    torch.cuda.set_per_process_memory_fraction(0.25, 2)
    assert torch.cuda.get_per_process_memory_fraction(2) == 0.25
    assert torch.cuda.get_per_process_memory_fraction(1) == 1.0
    torch.cuda.memory._record_memory_history(context=None)
    assert active() == [] and opened() == []
    kept = torch.ones(1 << 18, device="cuda:2")
    assert opened() == [2]
    assert torch.cuda.get_per_process_memory_fraction(2) == 0.25
    assert stratalloc.report(2)["gpu_limit"] == 16 << 20
    assert stratalloc.report(1)["gpu_limit"] == 64 << 20
    actions = [e["action"] for e in
               torch.cuda.memory._snapshot()["device_traces"][2]]
    assert "alloc" in actions and "segment_map" in actions, actions
    torch.cuda.set_per_process_memory_fraction(0.5, 2)
    assert stratalloc.report(2)["gpu_limit"] == 32 << 20
    try:
        torch.empty(40 << 20, dtype=torch.uint8, device="cuda:2")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the fraction does not hold")
    """)


def test_a_device_that_cannot_be_opened_costs_the_others_nothing():
    run("""
    assert stratalloc.enable(host_budget="64MiB")
    sim = simulate.driver()
    torch.cuda.init()
    torch.cuda.set_device(1)
    for attempt in range(2):
        assert sim.cudasim_fail(b"cudaMemGetInfo", 1, 1, 0) == 0
        try:
            torch.ones(4, device="cuda:1")
        except RuntimeError as error:
            assert "device 1 cannot be opened" in str(error), error
        else:
            raise AssertionError("it was opened")
        assert torch.ones(4, device="cuda:2").sum().item() == 4
        assert opened() == [2]
    assert torch.ones(4, device="cuda:1").sum().item() == 4
    assert opened() == [1, 2]
    """)


def test_a_device_without_virtual_memory_says_so_to_who_evicts():
    out = run("""
    from stratalloc._tiering.tiers import residency
    assert stratalloc.enable(host_budget="64MiB")
    here = torch.nn.Parameter(torch.ones(1 << 18, device="cuda:0"))
    try:
        stratalloc.evict()
    except RuntimeError as error:
        assert "GPU 0 takes no part in tiering" in str(error), error
    else:
        raise AssertionError("nothing can be evicted, and nobody said so")
    there = torch.nn.Parameter(torch.ones(1 << 18, device="cuda:1"))
    for moving in (stratalloc.evict, stratalloc.restore):
        for named in ({"obj": here}, {"device": 0}):
            try:
                moving(**named)
            except RuntimeError as error:
                assert "GPU 0 takes no part in tiering" in str(error), error
                assert "no virtual memory management" in str(error), error
            else:
                raise AssertionError((moving, named))
    assert stratalloc.evict() == 2 << 20
    assert residency(there)["host"] == 1 << 20
    assert (here.sum() + 1).item() == (1 << 18) + 1
    assert there.sum().item() == 1 << 18
    assert residency(there)["device"] == 1 << 20
    """, CUDASIM_VMM="off,on,on,on")
    assert out.count("nothing can be evicted from device 0") == 1, out


def test_a_block_waits_for_the_default_stream_of_another_device():
    """Its value is that of the block's own, for which nobody waits."""
    run("""
    assert stratalloc.enable(host_budget="64MiB")
    def waiting(recorded):
        block = torch.empty(1 << 20, device="cuda:0")
        block.record_stream(recorded)
        del block
        stats = torch.cuda.memory_stats(0)
        return (stats["active_bytes.all.current"]
                - stats["allocated_bytes.all.current"])
    assert waiting(torch.cuda.default_stream(0)) == 0
    assert waiting(torch.cuda.default_stream(1)) == 4 << 20
    torch.cuda.synchronize(1)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats(0)["active_bytes.all.current"] == 0
    """)


def test_eight_devices_of_a_real_size():
    """Contexts of half a GiB are paid where they are used; addresses suffice."""
    run("""
    assert stratalloc.enable(host_budget="1GiB")
    sim = simulate.driver()
    sim.cudasim_context_bytes.restype = ctypes.c_uint64
    def taken():
        return [sim.cudasim_context_bytes(d) >> 20 for d in range(8)]
    torch.cuda.set_device(3)
    kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda:3")]
    assert taken() == [0, 0, 0, 520, 0, 0, 0, 0], taken()
    stratalloc.evict()
    stratalloc.report(0), torch.cuda.memory_stats(5), torch.cuda.empty_cache()
    assert taken() == [0, 0, 0, 520, 0, 0, 0, 0], taken()
    for device in range(8):
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
    assert taken() == [520] * 8, taken()
    sizes = set()
    for device in range(8):
        range_ = stratalloc.report(device)["reservation"]
        sizes.add(range_["hi"] - range_["lo"])
    assert len(sizes) == 1 and sizes.pop() > 8 << 40, sizes
    """, 'simulate.load("card", devices=8, card="h200", numbers="off")')
