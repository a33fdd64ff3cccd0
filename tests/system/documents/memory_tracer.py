# SPDX-License-Identifier: Apache-2.0
"""A tracer of layers: `gpu_optimizer.MemoryTracer`."""

from tests.system.documents.block import Block
from tests.system.documents.block import Document
from tests.system.documents.block import Group

_PRELUDE = """
import dataclasses
import inspect
import json
import os

import torch
import gpu_optimizer
from gpu_optimizer import MemoryTracer

torch.manual_seed(0)
batch_size = 16


class YourModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks)
               for module in model.modules())


model = YourModel().cuda()
input_tensor = torch.randn(batch_size, 64).cuda()
hooks_before = hooks(model)
"""

_SHAPE = "the shape of the input stands as `...`, which is no argument: 64"

_CLONE = Block(
    lines=(21, 22), sha256="736a237776be26ce", kind="shell",
    made_of="installs a folder of another project; here the module is part "
    "of stratalloc")

_QUICK_START = Block(
    lines=(28, 47), sha256="6186dabc4c19e27d",
    replaced=(("(batch_size, ...)", "(batch_size, 64)"),), made_of=_SHAPE,
    epilogue="""
assert hooks(model) == hooks_before
assert {"up", "down"} <= set(tracer.get_layer_stats())
assert "up" in printed
for name in ("memory_profile.json", "memory_timeline.json"):
    with open(name) as stream:
        assert json.load(stream)
""")

_BASIC = Block(
    lines=(55, 65), sha256="9a3a6f3011dd5118", epilogue="""
assert printed.count(" MB\\n") == len(layer_stats) >= 2
assert layer_stats["up"].peak_allocated >= 4 * (
    sum(p.numel() for p in model.parameters()) + batch_size * 256)
""")

_FRAGMENTATION = Block(
    lines=(71, 82), sha256="c19ff5adfb708baa",
    replaced=(("(batch_size, ...)", "(batch_size, 64)"),), made_of=_SHAPE,
    epilogue="""
assert frag_stats and all(0 <= ratio <= 1 for ratio in frag_stats.values())
assert printed.count("% fragmentation\\n") == len(frag_stats)
""")

_PEAKS = Block(
    lines=(88, 99), sha256="407f3236d2946d0a", epilogue="""
sizes = [peak for _, peak in sorted_layers]
assert sizes == sorted(sizes, reverse=True) and all(
    isinstance(size, int) and size > 0 for size in sizes)
assert printed.startswith("Top 5 memory-intensive layers:\\n")
""")

_FLAME_GRAPH = Block(
    lines=(105, 114), sha256="8c2069901b4ad4c1", epilogue="""
with open("memory_profile.json") as stream:
    profile = json.load(stream)
assert profile["$schema"].startswith("https://www.speedscope.app/")
assert profile["profiles"] and profile["shared"]["frames"]
""")

_TIMELINE = Block(
    lines=(120, 135), sha256="36bf92353f801e04", epilogue="""
fields = {field.name for field in
          dataclasses.fields(gpu_optimizer.MemoryEvent)}
assert events and all(fields <= set(event) for event in events)
assert {"alloc", "layer_enter", "layer_exit"} <= {
    event["event_type"] for event in events}
assert set(layer_stats) == set(tracer.get_layer_stats())
assert summary["total_events"] == len(events)
""")

_CONSTRUCTOR = Block(
    lines=(143, 147), sha256="f114bea35ad8f5f4", kind="signature",
    made_of="a signature with annotations, which no call has; its defaults "
    "are compared", epilogue="""
defaults = {name: parameter.default for name, parameter in
            inspect.signature(MemoryTracer).parameters.items()}
assert list(defaults.items())[:3] == [
    ("max_events", 100000), ("device", "cuda:0"),
    ("enable_fragmentation_tracking", True)], defaults
""")

_TRACED = """
assert hooks(model) == hooks_before
assert output.shape == (len(input_tensor), 64)
"""

_TRACE = Block(lines=(161, 162), sha256="530cab903df7c7ed", epilogue=_TRACED)

_LAYER_STATS = Block(
    lines=(190, 198), sha256="6f740e19a9da9ed1", kind="shape",
    made_of="the fields of a class that exists: compared in order",
    epilogue="""
assert [field.name for field in
        dataclasses.fields(gpu_optimizer.LayerMemoryStats)][:7] == [
    "layer_name", "peak_allocated", "peak_reserved", "total_allocations",
    "total_deallocations", "avg_fragmentation", "duration_ms"]
""")

_EVENT = Block(
    lines=(204, 212), sha256="654bddbf35ae9cb1", kind="shape",
    made_of="the fields of a class that exists: compared in order",
    epilogue="""
assert [field.name for field in
        dataclasses.fields(gpu_optimizer.MemoryEvent)][:7] == [
    "timestamp", "event_type", "size_bytes", "layer_name",
    "allocated_bytes", "reserved_bytes", "fragmentation_ratio"]
""")

_OVERHEAD = Block(
    lines=(222, 247), sha256="f8a33165f4620fd9", epilogue="""
# A number is printed; what it is on a simulated device says nothing.
assert printed.startswith("Overhead: ") and printed.endswith("%\\n")
assert len(traced_times) == 100 and hooks(model) == hooks_before
""")

_MAX_EVENTS = Block(
    lines=(261, 265), sha256="8c52053ec97f9a1d", epilogue="""
small = MemoryTracer(max_events=10)
with small.trace(model):
    for _ in range(10):
        model(input_tensor)
assert len(small.events) == 10
""")

_FORMULA = Block(
    lines=(285, 285), sha256="c6c02cae4b81af6f", kind="formula",
    made_of="the formula, in words: held against every event",
    epilogue="""
with tracer.trace(model):
    model(input_tensor)
assert tracer.events
for event in tracer.events:
    want = ((event.reserved_bytes - event.allocated_bytes)
            / event.reserved_bytes if event.reserved_bytes else 0)
    assert abs(event.fragmentation_ratio - want) < 1e-6, event
""")

_LOCK = Block(
    lines=(298, 299), sha256="68bfe5648305da7a", kind="output",
    made_of="two lines of the original's inside, `self` is nobody's here; "
    "that threads may allocate while it traces is what they are for",
    epilogue="""
import threading

with tracer.trace(model):
    workers = [threading.Thread(target=model, args=(input_tensor,))
               for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
stats = tracer.get_layer_stats()
assert stats["up"].total_allocations >= 4
""")

_HOOKS = Block(lines=(309, 312), sha256="887df409a9189fe8", epilogue=_TRACED)

_NO_CUDA = Block(
    lines=(320, 321), sha256="4398cd3475958318",
    epilogue="assert printed == ''")

_FEWER_EVENTS = Block(
    lines=(329, 329), sha256="607c437e851f8739",
    epilogue="assert len(tracer.events) == 0")

_NO_FRAGMENTATION = Block(
    lines=(338, 338), sha256="ecd01a71ebc2ab7b", epilogue="""
with tracer.trace(model):
    model(input_tensor)
assert not any(tracer.get_fragmentation_stats().values())
""")

_NAMES = Block(
    lines=(346, 347), sha256="eef09f180448cfe7",
    epilogue="assert printed.split() == ['up', 'down']")

_DEMO = Block(
    lines=(355, 356), sha256="e8d683fd395e603d", kind="shell",
    made_of="a program of another project; the example of this one is "
    "python_shim/examples, and a test runs it")

_TESTS = Block(
    lines=(371, 372), sha256="ff586e29a36af2a3", kind="shell",
    made_of="tests of another project; those of this one are beside the "
    "module")

_PROFILE = Block(
    lines=(389, 389), sha256="3534c3f545caa902", epilogue="""
with open("profile.json") as stream:
    assert json.load(stream)["profiles"]
""", made_of="stands in a list, indented")

_PLOT = Block(
    lines=(406, 420), sha256="56eba0b740e91e22", epilogue="""
line, = plt.gca().lines
assert len(line.get_xdata()) == len(events) > 0
plt.close("all")
""")

DOCUMENT = Document(
    name="memory_tracer",
    file="003_dcea43c918fba4e6.txt",
    title="Memory Tracer",
    prelude=_PRELUDE,
    groups={"": Group("64MiB", enabled_by="import")},
    blocks=(
        _CLONE, _QUICK_START, _BASIC, _FRAGMENTATION, _PEAKS, _FLAME_GRAPH,
        _TIMELINE, _CONSTRUCTOR, _TRACE, _LAYER_STATS, _EVENT, _OVERHEAD,
        _MAX_EVENTS, _FORMULA, _LOCK, _HOOKS, _NO_CUDA, _FEWER_EVENTS,
        _NO_FRAGMENTATION, _NAMES, _DEMO, _TESTS, _PROFILE, _PLOT,
    ),
)
