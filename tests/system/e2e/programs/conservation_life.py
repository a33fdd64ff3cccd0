# SPDX-License-Identifier: Apache-2.0
"""What one thread of a seeded program does (conservation.py): a model, its
optimizer, and the steps it may take. `happened` counts what occurred.
"""

import collections
import contextlib
import copy
import gc
import threading
import traceback

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stratalloc

# What occurred, of all programs; a Counter's += is not one step of a thread.
happened, _happens = collections.Counter(), threading.Lock()


def happens(what, times=1):
    with _happens:
        happened[what] += times


@contextlib.contextmanager
def on_another_thread(work):
    """Runs beside the block; what it raises is raised at the block's end."""
    failed = []

    def run():
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


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
CHECKPOINTS = ("reentrant", "not reentrant", "nested")
OPTIMIZERS = (lambda p: torch.optim.SGD(p, .001, momentum=.9),
              lambda p: torch.optim.AdamW(p, .001),
              lambda p: torch.optim.Adam(p, .001, foreach=False),
              lambda p: torch.optim.Adagrad(p, .001))


class Life:
    """One thread's model and the steps it may take."""

    STEPS = ("train", "train", "train", "infer", "fail_forward",
             "fail_backward", "gradient_penalty", "evict", "restore", "pin",
             "annotate", "scope", "forget", "stream", "half", "release",
             "elsewhere", "sparse", "copy", "ends_inside", "asked", "too_much")

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
        self.checkpoint = draw.choice(CHECKPOINTS)
        # A cycle: what lives ends with the collector, as in programs.
        model = type(name, (nn.Module,), {
            "forward": lambda model, x: self._forward(model, x)})()
        model.layers = nn.ModuleList(layers)
        self.model = model.cuda()
        self.optimizer = draw.choice(OPTIMIZERS)(list(model.parameters()))
        model.table = nn.Embedding(self.rows, self.size, sparse=True,
                                   device="cuda")
        self.rare = torch.optim.SparseAdam(model.table.parameters())
        self.kept = []

    def _forward(self, model, x):
        for index, layer in enumerate(model.layers):
            happens("layers")
            if index not in self.checkpointed or not model.training:
                x = layer(x)
                continue
            happens(f"checkpoints, {self.checkpoint}")
            inner = layer
            if self.checkpoint == "nested":
                inner = self._checkpointed(layer)
            x = checkpoint(inner, x,
                           use_reentrant=self.checkpoint == "reentrant")
        return x

    @staticmethod
    def _checkpointed(layer):
        return lambda x: checkpoint(layer, x, use_reentrant=False)

    def _input(self):
        return torch.randn(self.rows, self.size, device="cuda",
                           requires_grad=True)

    def step(self, name, failed):
        """Takes one; out of memory is an end like another."""
        try:
            getattr(self, name)()
        except (Told, torch.OutOfMemoryError) as error:
            happens(f"raised {error}" if isinstance(error, Told)
                    else "out of memory")
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

    def elsewhere(self):
        """Backward on another thread, while this one goes on."""
        self.model.train()
        loss = self.model(self._input()).square().mean()
        with on_another_thread(loss.backward):
            self.kept.append(torch.ones(999, device="cuda"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        happens("backwards on another thread")

    def sparse(self):
        """Two sparse gradients become one, and their optimizer's state."""
        for _ in range(2):
            rows = torch.randint(0, self.rows, (17,), device="cuda")
            self.model.table(rows).square().sum().backward()
        self.rare.step()
        self.kept.append(self.model.table.weight.grad)
        self.rare.zero_grad()

    def copy(self):
        """Another model of this class, that trains and is gone."""
        mine, self.model = self.model, copy.deepcopy(self.model)
        try:
            self.train()
            self.kept.append(self.model.table.weight.detach())
        finally:
            self.model = mine

    def ends_inside(self):
        """A thread that leaves no scope: what it made is owned and freed."""
        def run():
            stratalloc.scope(type(self.model).__name__ + "/open").__enter__()
            self.kept.append(torch.ones(999, device="cuda"))
            stratalloc.scope("inner", category="activation").__enter__()
            self.kept.append(torch.ones(self.draw.randrange(1, 9999),
                                        device="cuda"))
            happens("threads ended in a scope")
        with on_another_thread(run):
            pass

    def asked(self):
        """Somebody asks for everything while this model grows and trains."""
        done = threading.Event()

        def ask():
            while True:
                stratalloc.holders(by="tensor")
                happens("answers to another thread")
                if done.is_set():
                    return

        with on_another_thread(ask):
            try:
                for number in range(5):
                    self.model.add_module(f"more{number}", nn.Linear(
                        8, 8, device="cuda"))
                    self.train()
                    delattr(self.model, f"more{number}")
            finally:
                done.set()

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
        # All that may leave, of others, too: what they name next is away.
        stratalloc.evict(self.model if self.draw.random() < .5 else None)

    def restore(self):
        stratalloc.restore(self.model)

    def pin(self):
        stratalloc.pin(self.model)
        self.train()
        stratalloc.unpin(self.model)

    def annotate(self):
        """Charges what may be on any tier to others, who keep it."""
        name = type(self.model).__name__ + "/x"
        weight = self.draw.choice(list(self.model.parameters()))
        stratalloc.evict(weight)
        for tensor in (weight, *self.kept[-2:]):
            stratalloc.annotate(tensor, name)
        stratalloc.watch(self.model)

    def scope(self):
        with stratalloc.scope(type(self.model).__name__ + "/stage"):
            self.kept.append(torch.ones(self.draw.randrange(1, 9999),
                                        device="cuda"))
            if self.draw.random() < .5:
                raise Told("in a scope")

    def too_much(self):
        """More than the device has, in the middle of a forward."""
        handle = self.layers[-1].register_forward_hook(
            lambda module, inputs, output: torch.empty(
                1 << 30, dtype=torch.uint8, device="cuda"))
        try:
            self.train()
        finally:
            handle.remove()

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
