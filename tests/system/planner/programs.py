# SPDX-License-Identifier: Apache-2.0
"""The programs that are recorded, each a function of a Recorder.

Models are small GPTs in plain torch; 24 layers of 24 pages, or fewer where a
program trains. Data-dependent choices come from seeded random numbers, since
numbers are off.
"""

import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

_WORDS = 4096


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x, cache=()):
        query, key, value = self.inputs(x).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        mixed = scores @ value
        for keys, values in cache:
            mixed = mixed + torch.softmax(query @ keys.T, dim=-1) @ values
        return self.output(mixed)


class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    """Two of the experts compute; chance chooses, some more often."""

    def __init__(self, width, count=8):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(Feed(width) for _ in range(count))
        self._random = random.Random(count)

    def forward(self, x):
        weights = torch.softmax(self.router(x), dim=-1)
        chosen = set()
        while len(chosen) < 2:
            chosen.add(min(int(self._random.expovariate(0.4)),
                           len(self.experts) - 1))
        for number in sorted(chosen):
            x = x + self.experts[number](x) * weights[..., number:number + 1]
        return x


class Block(nn.Module):
    def __init__(self, width, feed=Feed):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.feed = feed(width)

    def forward(self, x, cache=()):
        x = x + self.attention(self.norm(x), cache)
        return x + self.feed(x)


class Model(nn.Module):
    def __init__(self, layers, width=1024, feed=Feed, repeat=1, tied=False,
                 checkpoints=False):
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.blocks = nn.ModuleList(Block(width, feed) for _ in range(layers))
        self.head = nn.Linear(width, _WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self._repeat = repeat
        self._checkpoints = checkpoints

    def forward(self, words, caches=None):
        x = self.words(words)
        for index, block in enumerate(self.blocks):
            for _ in range(self._repeat):
                if self._checkpoints:
                    x = checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x, caches[index] if caches else ())
        return self.head(x)


def _model(recorder, *args, **kwargs):
    model = Model(*args, **kwargs).cuda()
    recorder.add(model)
    return model


def _words(batch=4, length=64):
    return torch.zeros(batch, length, dtype=torch.long, device="cuda")


def _backward(recorder, model, words):
    loss = nn.functional.cross_entropy(
        model(words).flatten(0, 1), words.flatten())
    with recorder.backward():
        loss.backward()


def _step(recorder, optimizer):
    with recorder.step(optimizer):
        optimizer.step()
    optimizer.zero_grad()


def _train(recorder, model, optimizer, cycles=8, accumulate=1, words=None):
    words = _words() if words is None else words
    with recorder.recorder_mode:
        for _ in range(cycles):
            for _ in range(accumulate):
                _backward(recorder, model, words)
            _step(recorder, optimizer)
            recorder.cycle()


def inference(recorder):
    model, words = _model(recorder, 24), _words()
    with recorder.recorder_mode, torch.no_grad():
        for _ in range(8):
            model(words)
            recorder.cycle()


def sgd(recorder):
    model = _model(recorder, 12)
    _train(recorder, model, torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9))


def _adamw(recorder, **options):
    model = _model(recorder, 12)
    _train(recorder, model, torch.optim.AdamW(model.parameters(), **options))


def adamw_fused(recorder):
    _adamw(recorder, fused=True)


def adamw_single(recorder):
    _adamw(recorder, foreach=False)


def adamw_default(recorder):
    _adamw(recorder)


def checkpointing(recorder):
    model = _model(recorder, 12, checkpoints=True)
    _train(recorder, model,
           torch.optim.AdamW(model.parameters(), fused=True))


def accumulation(recorder):
    model = _model(recorder, 12)
    _train(recorder, model, torch.optim.AdamW(model.parameters(), fused=True),
           accumulate=4)


def generation(recorder):
    """A cycle is a token. Every eighth one the caches grow by a page a layer."""
    layers, width = 16, 1024
    model = _model(recorder, layers, width)
    caches = [[] for _ in range(layers)]
    words = _words(1, 1)
    with recorder.recorder_mode, torch.no_grad():
        for token in range(48):
            if token % 8 == 0:
                for cache in caches:
                    cache.append((torch.zeros(256, width, device="cuda"),
                                  torch.zeros(256, width, device="cuda")))
            model(words, caches)
            recorder.cycle()


def experts(recorder):
    model = _model(recorder, 8, feed=Experts)
    words = _words(1, 16)
    with recorder.recorder_mode, torch.no_grad():
        for _ in range(32):
            model(words)
            recorder.cycle()


def shared(recorder):
    """Blocks that are applied three times, and a head that is the embedding."""
    model = _model(recorder, 12, repeat=3, tied=True)
    _train(recorder, model,
           torch.optim.AdamW(model.parameters(), fused=True))


def two_models(recorder):
    """A cycle is three batches of one model and one of the other."""
    first, second = _model(recorder, 12), _model(recorder, 8)
    words = _words()
    with recorder.recorder_mode, torch.no_grad():
        for _ in range(8):
            for model in (first, first, first, second):
                model(words)
            recorder.cycle()


def evaluation(recorder):
    """A cycle is an epoch: four steps of training, two batches of evaluation."""
    model, words = _model(recorder, 12), _words()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with recorder.recorder_mode:
        for _ in range(6):
            for _ in range(4):
                _backward(recorder, model, words)
                _step(recorder, optimizer)
            with torch.no_grad():
                for _ in range(2):
                    model(words)
            recorder.cycle()


PROGRAMS = {program.__name__: program for program in (
    inference, sgd, adamw_fused, adamw_single, adamw_default, checkpointing,
    accumulation, generation, experts, shared, two_models, evaluation)}
