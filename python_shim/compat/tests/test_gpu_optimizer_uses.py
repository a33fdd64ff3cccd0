# SPDX-License-Identifier: Apache-2.0
"""Uses of MemoryTracer: several cards, leaks and a dashboard; wrong uses and how
much is left of any."""

import gc
import os
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from traced_nets import RAN, Net, batch, counted, net, of  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.compat import gpu_optimizer  # noqa: E402
from stratalloc.compat.gpu_optimizer import MemoryTracer  # noqa: E402


# What the document wishes for.


def test_several_cards_are_one_or_each(net):
    both, second, every = (MemoryTracer(device=one) for one in (
        ["cuda:0", 1], "cuda:1", "all"))
    with counted(0) as one, counted(1) as two, both.trace(net), \
            second.trace(net), every.trace(net):
        kept = net(batch()), torch.ones(1000, device="cuda:1")
    assert len(of(both.events, "alloc")) == one[
        "allocation.all.allocated"] + two["allocation.all.allocated"]
    assert len(of(second.events, "alloc")) == two[
        "allocation.all.allocated"] == 1
    assert second.get_summary()["devices"] == [1]
    assert every.get_summary()["devices"] == [0, 1]
    assert both.events[-1].allocated_bytes == sum(
        torch.cuda.memory_allocated(device) for device in (0, 1))
    assert second.events[-1].allocated_bytes == torch.cuda.memory_allocated(1)
    assert second.get_layer_stats()["first"].total_allocations == 0
    assert every.get_peak_memory_per_layer()["first"] > 0
    del kept


def test_leaks_recommendations_and_a_dashboard(net, tmp_path):
    tracer, kept, x = MemoryTracer(), [], batch()
    with tracer.trace(net):
        for _ in range(16):
            with torch.no_grad():
                net(x)
            kept.append(net.first(x))
    found = tracer.get_leaks()
    assert [row.name for row in found.rows][:1] == ["Net.first"]
    advice = tracer.get_recommendations()
    assert any("Net.first" in one and "get_leaks()" in one for one in advice)
    pytest.importorskip("tensorboard")
    tracer.export_tensorboard(tmp_path / "board")
    assert list((tmp_path / "board").glob("events.out.tfevents.*"))
    before = threading.active_count()
    server = tracer.serve()
    import urllib.request

    told = urllib.request.urlopen(server.url).read().decode()
    assert 'module="Net.first"' in told
    server.close()
    assert threading.active_count() == before


# Wrong uses, and how much is left of any.


def left():
    """What a use could leave behind, counted."""
    gc.collect()
    hooks = sum(len(getattr(module, name)) for name in (
        "_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        for one in Net.made for module in one.modules())
    return (threading.active_count(), hooks, len(os.listdir("/proc/self/fd")),
            stratalloc.telemetry_level(), nn.Module.__call__,
            torch._C._cuda_isHistoryEnabled())


def test_wrong_uses_are_told_and_leave_nothing(net):
    before = left()
    for wrong, error, what in (
            (dict(max_events=0), ValueError, "max_events=0"),
            (dict(max_events=1.5), TypeError, "max_events"),
            (dict(max_events=True), TypeError, "max_events"),
            (dict(device="cuda:7"), ValueError, "sees 2 CUDA devices"),
            (dict(device="cuda:x"), ValueError, "no device"),
            (dict(device="gpu"), ValueError, "no device"),
            (dict(device="mps"), ValueError, "not traced"),
            (dict(device=None), TypeError, "device"),
            (dict(device=[]), ValueError, "empty"),
            (dict(device=["cpu", "cuda:0"]), ValueError, "of its own"),
            (dict(device=-1), ValueError, "cuda:-1|no device")):
        with pytest.raises(error, match=what):
            MemoryTracer(**wrong)
    tracer = MemoryTracer()
    with pytest.raises(RuntimeError, match="traced nothing"):
        tracer.run()
    for wrong in (None, "model", lambda x: x, nn.Linear):
        with pytest.raises(TypeError, match="nn.Module"):
            tracer.trace(wrong)
    with pytest.raises(KeyError, match="mine"):
        with tracer.trace(net):
            net(batch())
            raise KeyError("mine")
    assert set(tracer.get_layer_stats()) == RAN  # up to there
    with tracer.trace(net):
        with pytest.raises(RuntimeError, match="records already"):
            with tracer.trace(net):
                pass
        with pytest.raises(RuntimeError, match="records already"):
            tracer.trace(net).__enter__()
        net(batch())
    assert set(tracer.get_layer_stats()) == RAN  # the outer one's
    with tracer.trace(nn.Linear(2, 2)):  # on no card
        pass
    assert tracer.get_layer_stats() == {}
    assert left() == before


def test_two_tracers_at_once_on_one_model_and_on_two(net):
    other = Net().cuda()
    one, two, three = MemoryTracer(), MemoryTracer(), MemoryTracer()
    with one.trace(net):
        net(batch())
        with two.trace(net), three.trace(other):
            net(batch())
            other(batch())
        net(batch())
    calls = [len(of(tracer.events, "layer_enter"))
             for tracer in (one, two, three)]
    assert calls == [15, 5, 5]
    assert one.get_layer_stats()["first"].total_allocations == 3
    assert three.get_layer_stats()["first"].total_allocations == 1


def test_200_uses_forget_and_do_not_grow(net):
    tracer = MemoryTracer(max_events=1000)

    def use(times):
        for _ in range(times):
            with tracer.trace(net):
                net(batch())
        return len(tracer.events)

    first = use(5)
    import tracemalloc

    tracemalloc.start()
    use(20)
    before, begun = left(), tracemalloc.get_traced_memory()[0]
    assert use(190) == first
    assert left() == before
    grown = tracemalloc.get_traced_memory()[0] - begun
    tracemalloc.stop()
    # What numpy and Python keep for later is less than the events of a few.
    assert grown < 190 * first * 10
    assert set(tracer.get_layer_stats()) == RAN


@pytest.mark.parametrize("most", [
    10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_an_event_is_kept_in_less_than_120_bytes(most):
    """As many as fit are kept, and then a few more happen."""
    import tracemalloc

    tracer = MemoryTracer(max_events=most)
    model = nn.Identity().cuda()
    tracemalloc.start()
    with tracer.trace(model):
        for _ in range(most // 2 + 100):
            model(1)
    begun = tracemalloc.get_traced_memory()[0]
    assert len(tracer.events) == most
    assert tracer.get_layer_stats()[""].total_allocations == 0
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"\n{most} events: {held / most:.1f} bytes each")
    assert held <= 120 * most


def test_what_the_benchmark_measures_is_there():
    """A step is recorded where it is traced, and nothing else is different."""
    from stratalloc.bench import main, tracing

    class Worker:
        def ask(self, what, size, traced):
            assert what == "tracer"
            return tracing.measure(torch, size, traced)

    sizes, turns = tracing.SIZES, tracing._TURNS
    tracing.SIZES, tracing._TURNS = sizes[:1], 1
    try:
        rows = list(tracing.lines(Worker(), Worker(), main.entry, 2))
    finally:
        tracing.SIZES, tracing._TURNS = sizes, turns
        tracing._blocks.clear()
    assert [row["baseline_name"] for row in rows] == [
        "untraced", "native", "native", None]
    assert 100 < rows[0]["events"] < 1000
    for row in rows:
        assert len(tracing.cells(row)) == len(tracing.COLUMNS)
        assert row["value"] > 0
    low, high = rows[0]["ratio_range"]
    assert low <= rows[0]["ratio"] <= high


def test_everything_public_is_there():
    assert gpu_optimizer.__all__ == sorted(gpu_optimizer.__all__)
    assert {"MemoryTracer", "LayerMemoryStats", "MemoryEvent"} <= set(
        gpu_optimizer.__all__)
