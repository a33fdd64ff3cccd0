# SPDX-License-Identifier: Apache-2.0
"""MemoryTracer where memory leaves the card and comes back: moves are neither
allocations nor frees. And the first recording of a process has rings as large
as its tracer needs."""

from stratalloc import simulate

simulate.load("32MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402

stratalloc.enable(host_budget="256MiB", disk_budget=0)

from stratalloc.compat.gpu_optimizer import MemoryTracer  # noqa: E402
from stratalloc.telemetry.checks import timeline  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402


def _count(events, kind):
    return sum(event.event_type == kind for event in events)


def test_rings_are_as_large_as_the_first_tracer_needs():
    """More of one thread than a ring has by itself; this is the first test, and
    the process's first recording."""
    tracer = MemoryTracer(max_events=200_000)
    model = nn.Identity()
    torch.ones(1, device="cuda")
    with tracer.trace(model):
        for _ in range(70_000):
            model(1)
    assert tracer.lost_events == 0
    assert _count(tracer.events, "layer_enter") == 70_000
    # Rings are made once: of a tracer that wants more, the newest are there,
    # and it says how many are not.
    tracer = MemoryTracer(max_events=400_000)
    with tracer.trace(model):
        for _ in range(140_000):
            model(1)
    assert tracer.lost_events == 280_000 - (1 << 18)
    assert len(tracer.events) == (1 << 18) + 2


def test_moves_are_no_allocations():
    layers = nn.Sequential(*[nn.Linear(1024, 1024, bias=False)
                             for _ in range(12)]).cuda()  # 48 MiB
    tracer = MemoryTracer()
    x = torch.ones(256, 1024, device="cuda")
    before = torch.cuda.memory_stats()
    with tracer.trace(layers):
        for _ in range(2):
            with torch.no_grad():
                layers(x)
        # Which of them the plan has evicted by now is not said.
        stratalloc.evict(layers[3:6])
        del layers[3:6]
        kept = layers(x).sum()
        kept.backward()
    after = torch.cuda.memory_stats()
    run = tracer.run()
    kinds = run.events["kind"]
    moved = int((kinds == Kind.MOVE).sum())
    assert moved > 10
    assert int((kinds == Kind.FREED_AWAY).sum()) > 0
    events = tracer.events
    assert _count(events, "alloc") == after[
        "allocation.all.allocated"] - before["allocation.all.allocated"]
    assert _count(events, "free") == after[
        "allocation.all.freed"] - before["allocation.all.freed"]
    stats = tracer.get_layer_stats()
    # Two calls, one more and its backward; a move is nobody's allocation.
    assert stats["0"].total_allocations == 4
    assert sum(one.total_deallocations for one in stats.values()) == sum(
        event.event_type == "free" and event.layer_name is not None
        for event in events)
    # What is on the card after each event is in the list, moves included.
    assert _count(events, "snapshot") > moved
    assert events[-1].allocated_bytes <= 32 << 20 < sum(
        tracer.get_owned_memory_per_layer().values())


def test_a_timeline_of_moves_is_whole(tmp_path):
    tracer = MemoryTracer()
    layers = nn.Sequential(*[nn.Linear(1024, 1024, bias=False)
                             for _ in range(12)]).cuda()
    with tracer.trace(layers), torch.no_grad():
        layers(torch.ones(4, 1024, device="cuda"))
    tracer.export_timeline(tmp_path / "t.json")
    assert not timeline.check(tmp_path / "t.json")
    assert any("left the device" in one
               for one in tracer.get_recommendations())
