# SPDX-License-Identifier: Apache-2.0
"""A decoder of the size of Llama 7B, by hand: inference with a growing cache.

Also imported by lora.py. Random weights that nobody reads.
"""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HIDDEN, HEADS, LAYERS, WORDS = 4096, 11008, 32, 32, 32000


class Layer(nn.Module):
    """Attention and a gated feed-forward part, each after its norm."""

    def __init__(self, linear):
        super().__init__()
        self.norms = nn.ParameterList(
            [nn.Parameter(torch.empty(WIDTH)) for _ in range(2)])
        self.query = linear(WIDTH, WIDTH)
        self.key = linear(WIDTH, WIDTH)
        self.value = linear(WIDTH, WIDTH)
        self.out = linear(WIDTH, WIDTH)
        self.gate = linear(WIDTH, HIDDEN)
        self.up = linear(WIDTH, HIDDEN)
        self.down = linear(HIDDEN, WIDTH)

    def _norm(self, x, index):
        scale = x.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
        return (x * scale).to(x.dtype) * self.norms[index]

    def _heads(self, x):
        batch, length, _ = x.shape
        return x.view(batch, length, HEADS, -1).transpose(1, 2)

    def forward(self, x, cache=None):
        y = self._norm(x, 0)
        key, value = self._heads(self.key(y)), self._heads(self.value(y))
        if cache is not None:
            key = torch.cat((cache[0], key), 2)
            value = torch.cat((cache[1], value), 2)
        scores = self._heads(self.query(y)) @ key.transpose(2, 3)
        weights = functional.softmax(scores.float(), -1).to(x.dtype)
        mixed = (weights @ value).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        y = self._norm(x, 1)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return x, (key, value)


class Decoder(nn.Module):
    """Tokens in, logits of the last token and the cache out."""

    def __init__(self, linear):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer(linear) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, cache=None):
        x, grown = self.embedding(tokens), []
        for index, layer in enumerate(self.layers):
            x, pair = layer(x, cache[index] if cache else None)
            grown.append(pair)
        return self.head(x), grown


def build(linear=None):
    """The model in half precision, straight on the device."""
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        return Decoder(linear or (lambda a, b: nn.Linear(a, b, bias=False)))


def main():
    model = build()
    with torch.no_grad():
        for batch, prompt in ((4, 512), (1, 1500)):
            tokens = torch.zeros(batch, prompt, dtype=torch.long, device="cuda")
            cache = None
            for _ in range(12):
                logits, cache = model(tokens, cache)
                tokens = logits[:, -1:].argmax(-1)


if __name__ == "__main__":
    main()
