# SPDX-License-Identifier: Apache-2.0
"""The decoder of llama.py, fine-tuned through adapters of rank 16."""

import llama
import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False)
        self.base.weight.requires_grad_(False)
        self.down = nn.Linear(inputs, 16, bias=False)
        self.up = nn.Linear(16, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


model = llama.build(Adapted)
for module in (model.embedding, model.head):
    module.weight.requires_grad_(False)
optimizer = torch.optim.AdamW(
    [p for p in model.parameters() if p.requires_grad])
for length in (384, 512, 256):
    tokens = torch.zeros(2, length, dtype=torch.long, device="cuda")
    logits, _ = model(tokens)
    loss = nn.functional.cross_entropy(
        logits.float().view(-1, llama.WORDS), tokens.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
