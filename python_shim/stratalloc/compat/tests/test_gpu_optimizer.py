# SPDX-License-Identifier: Apache-2.0
"""MemoryTracer under our allocator, on two simulated cards: what it says is
held against torch's own counters, and wrong uses leave nothing behind. Its
files and pages are in test_gpu_optimizer_files.py."""

import contextlib
import dataclasses
import gc
import os
import threading
import weakref

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc.compat import gpu_optimizer  # noqa: E402
from stratalloc.compat.gpu_optimizer import (  # noqa: E402
    LayerMemoryStats, MemoryEvent, MemoryTracer)


class Net(nn.Module):
    """Two blocks, one of them with layers inside, and a layer never called."""

    made = weakref.WeakSet()

    def __init__(self):
        super().__init__()
        self.made.add(self)
        self.first = nn.Linear(64, 64)
        self.block = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        x = self.block(self.first(x))
        with stratalloc.scope("tail"):
            return (x * 2).sum()


class Temporary(nn.Module):
    def forward(self, x):
        return x + torch.zeros(1 << 20, device=x.device)[0]


RAN = {"", "first", "block", "block.0", "block.1"}


@pytest.fixture(scope="module")
def net():
    assert stratalloc.is_enabled()  # importing the module did it
    model = Net().cuda()
    model(batch()).backward()
    return model


def batch(rows=16):
    return torch.ones(rows, 64, device="cuda")


def counters(device=0):
    told = torch.cuda.memory_stats(device)
    return {name: told[name] for name in (
        "allocation.all.allocated", "allocation.all.freed",
        "allocated_bytes.all.allocated", "allocated_bytes.all.freed",
        "allocated_bytes.all.current", "reserved_bytes.all.current")}


@contextlib.contextmanager
def counted(device=0):
    """What torch's counters say more at the end than at the beginning."""
    found, before = {}, counters(device)
    yield found
    for name, value in counters(device).items():
        found[name] = value - before[name]


def of(events, kind):
    return [event for event in events if event.event_type == kind]


# Events.


def test_shapes_and_defaults_are_the_documents():
    tracer = MemoryTracer()
    assert (tracer.max_events, tracer.device,
            tracer.enable_fragmentation_tracking) == (100000, "cuda:0", True)
    assert MemoryTracer(5, "cuda:1", False).device == "cuda:1"
    assert [(one.name, one.type) for one in dataclasses.fields(MemoryEvent)
            ] == [("timestamp", float), ("event_type", str),
                  ("size_bytes", int), ("layer_name", str | None),
                  ("allocated_bytes", int), ("reserved_bytes", int),
                  ("fragmentation_ratio", float)]
    assert [(one.name, one.type) for one in dataclasses.fields(
        LayerMemoryStats)] == [
            ("layer_name", str), ("peak_allocated", int),
            ("peak_reserved", int), ("total_allocations", int),
            ("total_deallocations", int), ("avg_fragmentation", float),
            ("duration_ms", float)]


def test_events_are_torchs_counters(net):
    tracer = MemoryTracer()
    with counted() as more, tracer.trace(net):
        kept = net(batch())
    events = tracer.events
    assert {event.event_type for event in events} == {
        "alloc", "free", "snapshot", "layer_enter", "layer_exit"}
    made, gone = of(events, "alloc"), of(events, "free")
    assert len(made) == more["allocation.all.allocated"] > 3
    assert len(gone) == more["allocation.all.freed"] > 0
    assert sum(event.size_bytes for event in made) == more[
        "allocated_bytes.all.allocated"]
    assert sum(event.size_bytes for event in gone) == more[
        "allocated_bytes.all.freed"]
    first, last = events[0], events[-1]
    assert last.allocated_bytes - first.allocated_bytes == more[
        "allocated_bytes.all.current"]
    now = counters()
    assert last.allocated_bytes == now["allocated_bytes.all.current"]
    assert last.reserved_bytes == now["reserved_bytes.all.current"]
    # Each block changes the sum by its size, and nothing else does.
    sums = first.allocated_bytes
    for event in events:
        sums += event.size_bytes * {"alloc": 1, "free": -1}.get(
            event.event_type, 0)
        assert event.allocated_bytes == sums
    times = [event.timestamp for event in events]
    assert times == sorted(times) and times[0] == 0.0
    del kept


def test_events_read_like_a_deque(net):
    tracer = MemoryTracer()
    assert len(tracer.events) == 0 and list(tracer.events) == []
    with tracer.trace(net):
        net(batch())
        meanwhile = tracer.events
        assert of(meanwhile, "alloc") and tracer.get_layer_stats()
        net(batch())
    events = tracer.events
    assert len(events) > len(meanwhile)
    assert isinstance(events[0], MemoryEvent) and events is tracer.events
    assert events[1:3] == [events[1], events[2]]
    assert events[-1] == list(events)[-1] == next(reversed(events))
    assert events == list(events)
    with pytest.raises(IndexError):
        events[len(events)]
    with pytest.raises(TypeError):
        events["time"]


def test_of_many_the_newest_stay_and_layers_are_of_all(net):
    whole, few = MemoryTracer(), MemoryTracer(max_events=20)
    with whole.trace(net), few.trace(net):
        for _ in range(3):
            net(batch()).backward()
    assert len(few.events) == few.events.maxlen == 20
    assert few.events[:-1] == [
        dataclasses.replace(event, timestamp=pytest.approx(
            event.timestamp, abs=1e-2)) for event in whole.events[-20:-1]]
    assert few.lost_events == 0
    for name, one in whole.get_layer_stats().items():
        other = few.get_layer_stats()[name]
        assert (one.total_allocations, one.total_deallocations,
                one.peak_allocated, one.peak_reserved) == (
            other.total_allocations, other.total_deallocations,
            other.peak_allocated, other.peak_reserved)


def test_eight_threads_lose_nothing(net):
    tracer = MemoryTracer()
    ready = threading.Barrier(8)

    def work(count):
        ready.wait()
        kept = [torch.empty(1024 + i, device="cuda") for i in range(count)]
        del kept[count // 2:]
        return kept

    held = []
    with counted() as more, tracer.trace(net):
        threads = [threading.Thread(target=lambda n=n: held.append(work(n)))
                   for n in range(40, 120, 10)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    made, gone = of(tracer.events, "alloc"), of(tracer.events, "free")
    assert len(made) == more["allocation.all.allocated"] == sum(
        range(40, 120, 10))
    assert len(gone) == more["allocation.all.freed"]
    assert sum(one.size_bytes for one in made) - sum(
        one.size_bytes for one in gone) == more["allocated_bytes.all.current"]
    assert more["allocated_bytes.all.current"] > 0 and len(held) == 8


# Layers.


def test_layers_are_named_as_torch_names_them(net):
    tracer = MemoryTracer()
    with tracer.trace(net):
        net(batch())
    stats = tracer.get_layer_stats()
    assert set(stats) == RAN <= {name for name, _ in net.named_modules()}
    assert all(one.layer_name == name for name, one in stats.items())
    entered = [event.layer_name for event in of(tracer.events, "layer_enter")]
    assert entered == ["", "first", "block", "block.0", "block.1"]
    assert sorted(entered) == sorted(
        event.layer_name for event in of(tracer.events, "layer_exit"))
    for name in ("first", "block.0", "block.1"):
        assert stats[name].total_allocations == 1
    assert stats["block"].total_allocations == 0  # of its own
    # What the scope inside of the model allocated is the model's.
    assert stats[""].total_allocations == 2
    assert all(one.duration_ms > 0 for one in stats.values())
    assert stats[""].duration_ms > stats["block"].duration_ms > stats[
        "block.0"].duration_ms
    # A part alone has names of its own.
    with tracer.trace(net.block):
        net.block(batch())
        net.first(batch())
    assert set(tracer.get_layer_stats()) == {"", "0", "1"}
    assert None in {event.layer_name for event in of(tracer.events, "alloc")}


def test_a_backward_is_its_layers_on_autograds_thread(net):
    tracer = MemoryTracer()
    net.zero_grad()
    loss = net(batch())
    with counted() as more, tracer.trace(net):
        loss.backward()
    stats = tracer.get_layer_stats()
    assert all(stats[name].total_allocations >= 2  # weight, bias, input
               for name in ("first", "block.0"))
    assert sum(one.total_allocations for one in stats.values()) + sum(
        event.layer_name is None for event in of(tracer.events, "alloc")
    ) == more["allocation.all.allocated"]
    assert len(set(tracer.run().events["thread"].tolist())) >= 2
    assert "first" in {event.layer_name
                       for event in of(tracer.events, "layer_enter")}
    assert stats["first"].duration_ms > 0


def test_a_peak_is_what_was_allocated_while_the_layer_ran(net):
    tracer = MemoryTracer()
    with tracer.trace(net):
        torch.cuda.reset_peak_memory_stats()
        net(batch(512))
        peak = torch.cuda.max_memory_allocated()
        ballast = torch.empty(1 << 20, device="cuda")  # no layer's
        after = torch.cuda.max_memory_allocated()
        del ballast
    peaks = tracer.get_peak_memory_per_layer()
    assert peaks[""] == max(peaks.values()) == peak < after
    assert set(map(type, peaks.values())) == {int}
    assert tracer.get_summary()["peak_allocated_mb"] == after / 2**20
    assert peaks == {name: one.peak_allocated for name, one in
                     tracer.get_layer_stats().items()}
    around = nn.Sequential(Temporary()).cuda()
    with tracer.trace(around):
        around(batch())
    # What is gone when a layer ends was there while those around it ran.
    for one in tracer.get_layer_stats().values():
        assert one.peak_allocated >= 4 << 20 > torch.cuda.memory_allocated()


def test_what_is_a_layers_own(net):
    tracer = MemoryTracer()
    with tracer.trace(net):
        torch.cuda.reset_peak_memory_stats()
        net(batch(512))
        ballast = torch.empty(1 << 20, device="cuda")  # no layer's
        after = torch.cuda.max_memory_allocated()
        del ballast
    peaks = tracer.get_peak_memory_per_layer()
    owned = tracer.get_owned_memory_per_layer()
    assert owned["block.0"] < peaks["block.0"]
    assert owned["first"] >= 512 * 64 * 4
    held = tracer.get_memory_at_peak()
    assert sum(held.values()) == after and held[None] >= 4 << 20


# Fragmentation.


def test_fragmentation_is_the_formula(net):
    tracer = MemoryTracer(enable_fragmentation_tracking=True)
    with tracer.trace(net):
        for rows in (4, 8, 16, 8, 4):
            net(batch(rows))
    for event in tracer.events:
        assert event.fragmentation_ratio == (
            event.reserved_bytes - event.allocated_bytes
        ) / event.reserved_bytes
    ratios = tracer.get_fragmentation_stats()
    assert set(ratios) == RAN
    inside, wanted = [], []
    for event in tracer.events:
        if event.event_type == "layer_enter" and event.layer_name == "first":
            inside.append(1)
        if inside:
            wanted.append(event.fragmentation_ratio)
        if event.event_type == "layer_exit" and event.layer_name == "first":
            inside.pop()
    assert 0 < ratios["first"] < 1
    # Events of the run that are no MemoryEvents have a ratio, too.
    assert ratios["first"] == pytest.approx(sum(wanted) / len(wanted), abs=.01)


def _mean(tracer):
    return pytest.approx(sum(
        event.fragmentation_ratio for event in tracer.events
    ) / len(tracer.events), abs=1e-12)


def test_fragmentation_of_the_summary_is_the_mean_of_the_events(net):
    tracer, few = MemoryTracer(), MemoryTracer(max_events=4)
    spare = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
    with tracer.trace(net), few.trace(net):
        del spare  # the first event is far from the others
        net(batch()).backward()
    ratios = [event.fragmentation_ratio for event in tracer.events]
    assert max(ratios) > 2 * min(ratios) > 0
    assert tracer.get_summary()["avg_fragmentation"] == _mean(tracer)
    tracer.get_layer_stats()  # in the other order, too
    again = few.get_summary()["avg_fragmentation"]
    assert again == pytest.approx(_mean(tracer).expected, abs=.01) != _mean(few)
    with tracer.trace(net):
        pass
    assert tracer.events[0].fragmentation_ratio > 0
    assert tracer.get_summary()["avg_fragmentation"] == _mean(tracer)


def test_without_fragmentation_tracking_there_is_none(net):
    tracer = MemoryTracer(enable_fragmentation_tracking=False)
    with tracer.trace(net):
        net(batch())
    assert tracer.get_fragmentation_stats() == {}
    assert {event.fragmentation_ratio for event in tracer.events} == {0.0}
    assert {one.avg_fragmentation
            for one in tracer.get_layer_stats().values()} == {0.0}
    assert tracer.get_summary()["avg_fragmentation"] == 0.0


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
