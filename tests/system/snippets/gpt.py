# SPDX-License-Identifier: Apache-2.0
"""A small language model that trains: gpt.py STEPS PAUSE."""
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class GPT(nn.Module):
    def __init__(self, words=2000, width=256, layers=6):
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, text):
        x = self.emb(text)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16
pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0
model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    text = torch.randint(2000, (2, 64), device="cuda")
    loss = nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f}", flush=True)
    time.sleep(pause)
