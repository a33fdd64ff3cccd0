# SPDX-License-Identifier: Apache-2.0
"""Trains a small classifier, and validates it after each step.

With --losses tensors it keeps the validation losses as tensors, with the graphs
that made them, and runs out of memory; --losses numbers is the program mended.
"""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width=256, blocks=4, classes=10):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model):
    x = torch.randn(256, 256, device="cuda")
    y = torch.randint(0, 10, (256,), device="cuda")
    return nn.functional.cross_entropy(model(x), y)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--losses", choices=("tensors", "numbers"),
                        default="tensors")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Classifier().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        loss = loss_of(model)  # of other data
        losses.append(loss if args.losses == "tensors" else loss.item())
    print(f"{len(losses)} steps, last loss {float(losses[-1]):.3f}")


if __name__ == "__main__":
    main()
