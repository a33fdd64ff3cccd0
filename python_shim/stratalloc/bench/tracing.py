# SPDX-License-Identifier: Apache-2.0
"""What MemoryTracer costs a training step of one transformer block: torch's own
allocator, ours, and ours while the model is traced.

Two processes, since an allocator is for a process's life; both are asked for a
few steps by turns, ours once untraced and once traced, in an order that
rotates: what slows the machine down for a while slows all three. A step is
forward, backward, SGD and a wait for the device; what counts is the fastest of
the few, in the processor's time of the whole process, so that autograd's thread
is in it and other programs are not. Ratios are of turns, as in paired.py.

What begins and ends a trace is measured by itself: it is once, however many
steps there are between. On the simulated device kernels run on the processor
and are most of a step, as they are of a GPU's: of small ones (width 64, one
sentence of 8 words) the share of what is recorded is larger.

The first half runs in the worker, lines() asks it.
"""

import gc
import time

from stratalloc.bench import paired

GROUP = "MemoryTracer, a transformer block's step"
GOAL = 1.01
_TURNS = 4  # of a round
_STEPS = 5  # of a turn, behind the first, which finds its caches cold
_WARM = 3
# width, words of a sentence, sentences
SIZES = ((64, 8, 1), (256, 64, 4))
_blocks = {}


class _Block:
    def __init__(self, torch, width, words, sentences):
        self._torch = torch
        self.model = torch.nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, batch_first=True).cuda()
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._batch = torch.ones(sentences, words, width, device="cuda")
        for _ in range(_WARM):
            self.step()

    def step(self):
        """Nanoseconds."""
        start = time.process_time_ns()
        self.model(self._batch).mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._torch.cuda.synchronize()
        return time.process_time_ns() - start


def measure(torch, size, traced):
    """A turn: {"ns": of a step, "trace_ns": to begin and end a trace, "events":
    that were recorded of one step}."""
    size = tuple(size)
    block = _blocks.get(size)
    if block is None:
        block = _blocks[size] = _Block(torch, *size)
    gc.collect()
    gc.disable()
    try:
        if not traced:
            return {"ns": _fastest(block)}
        from stratalloc.compat.gpu_optimizer import MemoryTracer

        tracer = MemoryTracer()
        start = time.process_time_ns()
        with tracer.trace(block.model):
            begun = time.process_time_ns()
            taken = _fastest(block)
            ending = time.process_time_ns()
        ended = time.process_time_ns()
        return {"ns": taken, "trace_ns": begun - start + ended - ending,
                "events": len(tracer.run().events) / (_STEPS + 1)}
    finally:
        gc.enable()


def _fastest(block):
    block.step()
    return min(block.step() for _ in range(_STEPS))


def lines(native, ours, entry, rounds):
    """Rows of the table. native, ours: workers."""
    for size in SIZES:
        asked = {"native": [], "ours": [], "traced": []}
        ways = [("native", native, False), ("ours", ours, False),
                ("traced", ours, True)]
        for i in range(rounds * _TURNS + 1):
            for name, worker, traced in ways[i % 3:] + ways[:i % 3]:
                answer = worker.ask("tracer", size=size, traced=traced)
                if i:  # the first touches everything once
                    asked[name].append(answer)
        width, words, sentences = size
        what = f"{width} wide, {sentences} x {words} words"
        taken = {name: [answer["ns"] for answer in answers]
                 for name, answers in asked.items()}
        for name, one, other in (("traced", "traced", "ours"),
                                 ("traced", "traced", "native"),
                                 ("untraced", "ours", "native")):
            row = entry(f"{what}, {name}", taken[one], taken[other],
                        "untraced" if other == "ours" else "native")
            row["ratio"], *row["ratio_range"] = paired.ratio(
                taken[one], taken[other])
            row["events"] = (asked["traced"][-1]["events"]
                             if one == "traced" else None)
            if one == "traced":
                row["goal"] = f"<= {GOAL}x"
                row["pass"] = row["ratio"] <= GOAL
            yield row
        row = entry(f"{what}, a trace's begin and end", [
            answer["trace_ns"] for answer in asked["traced"]])
        row.update(ratio_range=None, events=None)
        yield row


COLUMNS = ("benchmark", "ns", "against, ns", "ratio", "95%", "events")


def cells(row):
    """Of one line in the table: as COLUMNS."""
    low_high = row["ratio_range"]
    return (row["name"], f"{row['value']:.0f}",
            "-" if row["baseline"] is None
            else f"{row['baseline_name']} {row['baseline']:.0f}",
            "-" if row["ratio"] is None else f"{row['ratio']:.4f}x",
            "-" if low_high is None
            else f"{low_high[0]:.4f}..{low_high[1]:.4f}",
            "-" if row["events"] is None else f"{row['events']:.0f}")
