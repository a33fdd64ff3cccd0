# SPDX-License-Identifier: Apache-2.0
"""MemoryTracer under our allocator, on two simulated cards: events, layers and
fragmentation are held against torch's own counters."""

import dataclasses
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from traced_nets import (  # noqa: E402,F401
    RAN, batch, counted, counters, net, of)
from stratalloc.compat.gpu_optimizer import (  # noqa: E402
    LayerMemoryStats, MemoryEvent, MemoryTracer)


class Temporary(nn.Module):
    def forward(self, x):
        return x + torch.zeros(1 << 20, device=x.device)[0]


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
