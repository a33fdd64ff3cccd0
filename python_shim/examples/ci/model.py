# SPDX-License-Identifier: Apache-2.0
"""A small language model, as an example of what a project tests."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self, words=2000, width=128, layers=4, heads=4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            [Layer(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, words)

    def forward(self, tokens, targets=None):
        """Scores of each next word, or their loss."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        if targets is None:
            return scores
        return nn.functional.cross_entropy(scores.flatten(0, 1),
                                           targets.flatten())


def train_step(model, optimizer, tokens):
    """One step of predicting the next word; the loss."""
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    network = LanguageModel().cuda()
    adam = torch.optim.AdamW(network.parameters())
    for _ in range(3):
        train_step(network, adam, torch.randint(0, 2000, (8, 65),
                                                device="cuda"))
