# SPDX-License-Identifier: Apache-2.0
"""Train 24 layers, 24 MiB of parameters: train.py [ROWS of a batch]."""

import sys

import torch
from torch import nn

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 64
torch.manual_seed(0)
model = nn.Sequential(*[
    nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(24)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    batch = torch.randn(rows, 512, device="cuda")
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")
