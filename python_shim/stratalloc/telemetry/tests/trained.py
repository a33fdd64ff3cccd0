# SPDX-License-Identifier: Apache-2.0
"""A small transformer in training, which a card of 24 MiB has no room for: run
by `stratalloc run --simulate 24MiB --record`."""

import torch
from torch import nn

import stratalloc


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        return x + self.mlp(self.attention(y, y, y, need_weights=False)[0])


class Words(nn.Module):
    def __init__(self, words=500, width=192, depth=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


def main():
    torch.manual_seed(0)
    model = Words().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(14):
        x = torch.randint(0, 500, (2, 16), device="cuda")
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stratalloc.mark(f"step {step}")


if __name__ == "__main__":
    main()
