# SPDX-License-Identifier: Apache-2.0
"""A mixture of 8 experts whose batches differ in every step.

Without numbers there is no routing, so the shares are drawn on the host.
"""

import random

import torch
from torch import nn

WIDTH, TOKENS = 2048, 8192
draw = random.Random(7)


def shares():
    cuts = sorted(draw.randrange(1, TOKENS) for _ in range(7))
    return [b - a for a, b in zip([0] + cuts, cuts + [TOKENS])]


model = nn.ModuleList([
    nn.ModuleList([
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                      nn.Linear(4 * WIDTH, WIDTH)) for _ in range(8)])
    for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    x = torch.empty(TOKENS, WIDTH, device="cuda")
    for layer in model:
        parts = x.split(shares())
        x = x + torch.cat([expert(part.contiguous())
                           for expert, part in zip(layer, parts)])
    loss = x.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
