# SPDX-License-Identifier: Apache-2.0
"""Five looks at a model's memory, layer by layer.

    stratalloc run --simulate 512MiB memory_tracer_demo.py [folder]

On a machine with a GPU plain `python memory_tracer_demo.py` will do. What is
written goes into the folder, or a new one below the system's for such.
"""

import json
import pathlib
import statistics
import sys
import tempfile
import time

import torch
from stratalloc.compat.gpu_optimizer import MemoryTracer
from torch import nn

MIB = 1 << 20


def title(number, text):
    print(f"\n{number}. {text}\n{'-' * (len(text) + 3)}")


def perceptron(width=512):
    return nn.Sequential(
        nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
        nn.Linear(width, 10)).cuda()


def basic():
    title(1, "What a forward and a backward need")
    model = perceptron()
    tracer = MemoryTracer()
    with tracer.trace(model):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    tracer.print_summary()
    print("what each layer owned at most:")
    owned = tracer.get_owned_memory_per_layer()
    for name in sorted(owned, key=owned.get, reverse=True):
        print(f"  {name or '(the model)':12} {owned[name] / MIB:7.3f} MiB")


def fragmentation():
    title(2, "How much of what is reserved is free, as batches change")
    model = perceptron()
    tracer = MemoryTracer(enable_fragmentation_tracking=True)
    with tracer.trace(model), torch.no_grad():
        for rows in (64, 512, 2048, 512, 64):
            model(torch.randn(rows, 256, device="cuda"))
    for name, share in tracer.get_fragmentation_stats().items():
        print(f"  {name or '(the model)':12} {share:6.1%}")
    worst = max(tracer.events, key=lambda event: event.fragmentation_ratio)
    print(f"most at {worst.timestamp * 1e3:.1f} ms: "
          f"{worst.fragmentation_ratio:.1%} of "
          f"{worst.reserved_bytes / MIB:.0f} MiB")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    def __init__(self, words=1000, width=128, layers=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def step(model, optimizer, tokens):
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def training():
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 1000, (4, 65), device="cuda")
    step(model, optimizer, tokens)  # what is made once is there
    return model, optimizer, tokens


def transformer():
    title(3, "A transformer's training step")
    model, optimizer, tokens = training()
    tracer = MemoryTracer(device="cuda:0")
    with tracer.trace(model):
        step(model, optimizer, tokens)
    peaks = sorted(tracer.get_peak_memory_per_layer().items(),
                   key=lambda one: one[1], reverse=True)
    print("while it ran, the most that was allocated:")
    for name, peak in peaks[:5]:
        print(f"  {name or '(the model)':24} {peak / MIB:7.2f} MiB")
    held = tracer.get_memory_at_peak()
    print("whose it was at the peak:")
    for name in sorted(held, key=held.get, reverse=True)[:5]:
        called = {None: "(no layer)", "": "(the model)"}.get(name, name)
        print(f"  {called:24} {held[name] / MIB:7.2f} MiB")
    for sentence in tracer.get_recommendations():
        print("advice:", sentence)
    return tracer


def flame_graph(tracer, folder):
    title(4, "Files for other tools")
    graph, line = folder / "profile.json", folder / "timeline.json"
    tracer.export_flame_graph(graph)
    tracer.export_timeline(line)
    profiles = json.loads(graph.read_text())["profiles"]
    print(f"{graph}: {len(profiles)} profiles; drop it on "
          "https://www.speedscope.app/")
    told = json.loads(line.read_text())
    print(f"{line}: {len(told['events'])} events, peak "
          f"{told['summary']['peak_allocated_mb']:.2f} MiB")


def overhead(turns=12):
    title(5, "What tracing costs")
    model, optimizer, tokens = training()
    tracer = MemoryTracer()

    def timed():
        start = time.perf_counter()
        step(model, optimizer, tokens)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    ratios = []
    for _ in range(turns):  # by turns: the machine is not always as fast
        plain = timed()
        with tracer.trace(model):
            timed()
            traced = timed()
        ratios.append(traced / plain)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"a traced step took {middle:.3f} times as long ({low:.3f} to "
          f"{high:.3f} in the middle half of {turns}); `stratalloc bench` "
          "measures it well")


def main():
    if not torch.cuda.is_available():
        print("There is no GPU here: stratalloc run --simulate 512MiB "
              f"{sys.argv[0]}")
        return 3
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1
                          else tempfile.mkdtemp(prefix="memory-tracer-"))
    torch.manual_seed(0)
    basic()
    fragmentation()
    flame_graph(transformer(), folder)
    overhead()
    return 0


if __name__ == "__main__":
    sys.exit(main())
