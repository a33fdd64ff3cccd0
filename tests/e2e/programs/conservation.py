# SPDX-License-Identifier: Apache-2.0
"""Seeded programs, and what the accounts must add up to after every step.

    conservation.py FIRST LAST

A program has one to three threads. Each trains a model of its own kind (its
class is named after seed and thread, so that nobody else pays into its rows)
with random layers, checkpoints, hooks, exceptions in forward and in backward,
optimizers, autocast, gradients of gradients, streams, evictions and pins.
Between steps nobody runs. Prints one JSON line: {"programs", "looks", "wrong":
[[seed, step, what], ...], "steps": {name: count}}.
"""

import collections
import gc
import json
import random
import sys
import threading
import traceback

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import stratalloc

PARTS = ("allocated", "pending", "stranded", "releasable", "in_private_pools")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return 2 * x * gradient


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inner = nn.MultiheadAttention(size, 2, batch_first=True)

    def forward(self, x):
        # The fast kernel has no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            x = x[None]
            return self.inner(x, x, x, need_weights=False)[0][0]


class Normal(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(size)

    def forward(self, x):
        return Square.apply(torch.tanh(self.norm(x)))


class Told(Exception):
    """Raised on purpose."""


class Fails(nn.Module):
    """Fails when it is told to, in forward or in backward."""

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size, bias=False)
        self.fails = None

    def forward(self, x):
        y = self.linear(x)
        if self.fails == "forward":
            raise Told("in forward")
        if self.fails == "backward" and y.requires_grad:
            y.register_hook(self._raise)
        return y

    def _raise(self, gradient):
        raise Told("in backward")


KINDS = (lambda size: nn.Linear(size, size), Fails, Attention, Normal,
         lambda size: nn.Sequential(nn.LayerNorm(size), nn.GELU(),
                                    nn.Linear(size, size)))
OPTIMIZERS = (lambda p: torch.optim.SGD(p, .001, momentum=.9),
              lambda p: torch.optim.AdamW(p, .001),
              lambda p: torch.optim.Adam(p, .001, foreach=False),
              lambda p: torch.optim.Adagrad(p, .001))


class Life:
    """One thread's model and the steps it may take."""

    STEPS = ("train", "train", "train", "infer", "fail_forward",
             "fail_backward", "gradient_penalty", "evict", "restore", "pin",
             "annotate", "scope", "forget", "stream", "half", "release")

    def __init__(self, name, draw):
        self.draw = draw
        self.size = 2 * draw.randrange(8, 160)
        self.rows = draw.randrange(4, 300)
        layers = [draw.choice(KINDS)(self.size)
                  for _ in range(draw.randrange(1, 6))]
        if draw.random() < .3:
            layers.append(layers[0])  # shared weights
        self.layers = layers
        self.checkpointed = {i for i in range(len(layers))
                             if draw.random() < .3}
        self.reentrant = draw.random() < .5
        # A cycle: what lives ends with the collector, as in programs.
        model = type(name, (nn.Module,), {
            "forward": lambda model, x: self._forward(model, x)})()
        model.layers = nn.ModuleList(layers)
        self.model = model.cuda()
        self.optimizer = draw.choice(OPTIMIZERS)(list(model.parameters()))
        self.kept = []

    def _forward(self, model, x):
        for index, layer in enumerate(model.layers):
            if index in self.checkpointed and model.training:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            else:
                x = layer(x)
        return x

    def _input(self):
        return torch.randn(self.rows, self.size, device="cuda",
                           requires_grad=True)

    def step(self, name, failed):
        """Takes one; out of memory is an end like another."""
        try:
            getattr(self, name)()
        except (Told, torch.OutOfMemoryError):
            self.optimizer.zero_grad()
        except Exception:  # noqa: BLE001 - of a thread: told by its parent
            failed.append(traceback.format_exc())

    def train(self):
        self.model.train()
        loss = self.model(self._input()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.draw.random() < .7)

    def infer(self):
        self.model.eval()
        with torch.no_grad():
            self.kept.append(self.model(self._input()))

    def _fail(self, how):
        fails = [layer for layer in self.layers if isinstance(layer, Fails)]
        for layer in fails:
            layer.fails = how
        try:
            self.train()
        finally:
            for layer in fails:
                layer.fails = None

    def fail_forward(self):
        self._fail("forward")

    def fail_backward(self):
        self._fail("backward")

    def gradient_penalty(self):
        self.model.eval()
        x = self._input()
        gradient, = torch.autograd.grad(self.model(x).sum(), x,
                                        create_graph=True, allow_unused=True)
        if gradient is not None and gradient.requires_grad:
            gradient.square().sum().backward()

    def evict(self):
        stratalloc.evict(self.model)

    def restore(self):
        stratalloc.restore(self.model)

    def pin(self):
        stratalloc.pin(self.model)
        self.train()
        stratalloc.unpin(self.model)

    def annotate(self):
        if self.kept:
            stratalloc.annotate(self.kept[-1], f"{type(self.model).__name__}/x")

    def scope(self):
        with stratalloc.scope(type(self.model).__name__ + "/stage"):
            self.kept.append(torch.ones(self.draw.randrange(1, 9999),
                                        device="cuda"))
            if self.draw.random() < .5:
                raise Told("in a scope")

    def forget(self):
        del self.kept[:self.draw.randrange(len(self.kept) + 1)]

    def stream(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.infer()
        self.kept[-1].record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)

    def half(self):
        with torch.autocast("cuda", torch.bfloat16):
            self.train()

    def release(self):
        gc.collect()
        torch.cuda.empty_cache()


def moved():
    """Changes whenever a byte moves."""
    stats = torch.cuda.memory_stats()
    tiers = stratalloc.stats()["tiers"]
    return (stats["allocated_bytes.all.current"],
            stats["allocated_bytes.all.freed"],
            tiers["bytes_evicted"], tiers["bytes_restored"])


def differences():
    """What does not add up when nothing moves: text, empty if all does."""
    gc.collect()  # nothing ends between two answers
    torch.cuda.synchronize()
    while True:  # what is on its way out in the background arrives
        before = moved()
        wrong = _differences()
        if moved() == before:
            return wrong


def _differences():
    wrong = []

    def same(what, one, other):
        if one != other:
            wrong.append(f"{what}: {one} is not {other}")

    found = stratalloc.fragmentation()
    report = stratalloc.report()
    layers = report["layers"]
    here = torch.cuda.memory_allocated()
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    same("layers and live", sum(row["live"] for row in layers), report["live"])
    same("scopes and live", sum(row["live"] for row in report["scopes"]),
         report["live"])
    same("tiers and live", sum(row[tier] for row in layers
                               for tier in ("device", "host", "disk")),
         report["live"])
    same("layers on the device", sum(row["device"] for row in layers), here)
    same("the peak", sum(row["at_peak"] for row in layers),
         torch.cuda.max_memory_allocated())
    same("why it stays", sum(report["stays"].values()), here)
    same("fragmentation", sum(found[part] for part in PARTS), found.reserved)
    same("reserved", found.reserved, torch.cuda.memory_reserved())
    same("allocated", found.allocated, here)
    same("active", found.allocated + found.pending, active)
    same("holders", stratalloc.holders(by="category").total, report["live"])
    for row in layers:
        if any(isinstance(value, int) and value < 0
               for value in row.values()):
            wrong.append(f"negative: {row}")
        if row["peak"] < row["live"]:
            wrong.append(f"more than its peak: {row}")
        if (row["blocks"] == 0) != (row["live"] == 0):
            wrong.append(f"blocks without bytes: {row}")
    return wrong


def run(seed, counts):
    """Yields (step, what is wrong) of one program."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    names = [f"Net{seed}x{i}" for i in range(draw.choice((1, 1, 2, 3)))]
    lives = [Life(name, random.Random(f"{seed}/{i}"))
             for i, name in enumerate(names)]
    if draw.random() < .3:
        torch.cuda.reset_peak_memory_stats()
    for step in range(draw.randrange(2, 6)):
        chosen = [draw.choice(Life.STEPS) for _ in lives]
        counts.update(chosen)
        failed = []
        threads = [threading.Thread(target=life.step, args=(name, failed))
                   for life, name in zip(lives, chosen)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield step, failed + differences()
    lives.clear()
    del threads
    gc.collect()
    wrong = differences()
    left = [row for row in stratalloc.report()["layers"]
            if row["owner"].split(".")[0].split("/")[0] in names
            and row["live"]]
    yield "end", wrong + [f"left: {left}"] * bool(left)


def main(first, last):
    counts, wrong, looks = collections.Counter(), [], 0
    for seed in range(first, last + 1):
        for step, what in run(seed, counts):
            looks += 1
            wrong += [[seed, step, each] for each in what]
    print(json.dumps({"programs": last - first + 1, "looks": looks,
                      "wrong": wrong[:20], "steps": counts}))


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:3]))
