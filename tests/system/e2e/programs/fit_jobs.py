# SPDX-License-Identifier: Apache-2.0
"""Programs of which `fit` says whether they would fit a card.

Each takes a random.Random, which decides its sizes, and runs a few steps on
the current device. Nothing looks at numbers: they may be off.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint


class _Block(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, width, heads, linear=nn.Linear):
        super().__init__()
        self.heads = heads
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        if cache is not None:
            key = torch.cat([cache[0], key], 2) if cache else key
            value = torch.cat([cache[1], value], 2) if cache else value
            cache[:] = [key, value]
        scores = (query @ key.transpose(2, 3)).softmax(-1)
        mixed = (scores @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class _Model(nn.Module):
    """Words to words."""

    def __init__(self, layers, width, words=4096, linear=nn.Linear,
                 recompute=False):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            _Block(width, 8, linear) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.recompute = recompute

    def forward(self, words, caches=None):
        x = self.embedding(words)
        for index, layer in enumerate(self.layers):
            if self.recompute:
                x = checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x, None if caches is None else caches[index])
        return self.head(x)


class _Adapted(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.a = nn.Linear(inputs, 8, bias=False)
        self.b = nn.Linear(8, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class _Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.skip(x)).relu()


def _network(classes=100):
    widths = [64, 128, 256, 512]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *(_Residual(a, b, 1 + (a != b)) for a, b in
          zip([64, *widths], widths)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _words(batch, length):
    return torch.zeros(batch, length, dtype=torch.long, device="cuda")


def _loss(logits, words):
    return functional.cross_entropy(logits.float().flatten(0, 1),
                                    words.flatten())


def _pictures(count, side):
    return (torch.empty(count, 3, side, side, device="cuda"),
            torch.zeros(count, dtype=torch.long, device="cuda"))


def convolutions(chance):
    """A convolutional network at changing resolutions, SGD with momentum."""
    model = _network().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)
    for _ in range(4):
        images, labels = _pictures(chance.randrange(4, 20),
                                   chance.choice([64, 96, 128, 160]))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def _train(model, optimizer, chance, steps=4, autocast=False):
    for _ in range(steps):
        words = _words(chance.randrange(1, 9), chance.randrange(16, 256))
        optimizer.zero_grad()
        # Its cache would free in the order of a hash of host addresses: the
        # program on the one card would be another than on the other.
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast,
                            cache_enabled=False):
            loss = _loss(model(words), words)
        loss.backward()
        optimizer.step()


def adamw(chance):
    """A transformer, AdamW, batches of every size."""
    model = _Model(chance.randrange(2, 6), 512).cuda()
    _train(model, torch.optim.AdamW(model.parameters()), chance)


def adam_one_by_one(chance):
    """Adam that goes through its parameters one by one."""
    model = _Model(3, chance.choice([256, 384])).cuda()
    _train(model, torch.optim.Adam(model.parameters(), foreach=False), chance)


def amp(chance):
    """Autocast to bfloat16."""
    model = _Model(chance.randrange(2, 5), 512).cuda()
    _train(model, torch.optim.AdamW(model.parameters()), chance, autocast=True)


def checkpointing(chance):
    """Layers are computed again in the backward pass."""
    model = _Model(chance.randrange(4, 8), 384, recompute=True).cuda()
    _train(model, torch.optim.AdamW(model.parameters()), chance)


def lora(chance):
    """Adapters of a frozen model."""
    model = _Model(chance.randrange(3, 7), 512, linear=_Adapted)
    model.embedding.weight.requires_grad_(False)
    model.head.weight.requires_grad_(False)
    model.cuda()
    _train(model, torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad]), chance)


def accumulation(chance):
    """Gradients of several batches, then a step with clipping."""
    model = _Model(chance.randrange(2, 5), 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            words = _words(chance.randrange(1, 5), chance.randrange(32, 256))
            _loss(model(words), words).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        optimizer.step()


def inference(chance):
    """Requests of every size, half precision."""
    model = _Model(chance.randrange(4, 9), 768).half().cuda().eval()
    with torch.inference_mode():
        for _ in range(12):
            model(_words(chance.randrange(1, 9), chance.randrange(8, 400)))


def generation(chance):
    """Caches of keys and values that grow word by word."""
    model = _Model(chance.randrange(3, 6), 512).cuda().eval()
    with torch.inference_mode():
        for _ in range(2):
            caches = [[] for _ in model.layers]
            batch = chance.randrange(2, 12)
            words = _words(batch, chance.randrange(20, 200))
            for _ in range(40):
                words = model(words, caches)[:, -1:].argmax(-1)


def evaluation(chance):
    """Training, and now and then an evaluation with larger batches."""
    model = _network().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.train()
        for _ in range(2):
            images, labels = _pictures(chance.randrange(2, 9), 128)
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(_pictures(chance.randrange(16, 48), 128)[0])


def two_streams(chance):
    """The next batch comes on a stream of its own."""
    model = _network().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), .1)
    side = torch.cuda.Stream()

    def fetch():
        with torch.cuda.stream(side):
            count = chance.randrange(4, 17)
            return torch.empty(count, 3, 128, 128).to("cuda",
                                                      non_blocking=True)

    following = fetch()
    for _ in range(5):
        torch.cuda.current_stream().wait_stream(side)
        images = following
        images.record_stream(torch.cuda.current_stream())
        following = fetch()
        loss = model(images).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def experts(chance):
    """A mixture of experts whose shares differ in every step."""
    width = 384
    layers = nn.ModuleList(
        nn.ModuleList(nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(),
            nn.Linear(4 * width, width)) for _ in range(4))
        for _ in range(3)).cuda()
    optimizer = torch.optim.AdamW(layers.parameters())
    for _ in range(4):
        tokens = chance.randrange(200, 4000)
        x = torch.empty(tokens, width, device="cuda")
        for layer in layers:
            cuts = sorted(chance.randrange(1, tokens) for _ in range(3))
            shares = [b - a for a, b in zip([0, *cuts], [*cuts, tokens])]
            x = x + torch.cat([expert(part.contiguous()) for expert, part
                               in zip(layer, x.split(shares))])
        optimizer.zero_grad()
        x.square().mean().backward()
        optimizer.step()


JOBS = {one.__name__: one for one in (
    convolutions, adamw, adam_one_by_one, amp, checkpointing, lora,
    accumulation, inference, generation, evaluation, two_streams, experts)}
