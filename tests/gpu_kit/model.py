# SPDX-License-Identifier: Apache-2.0
"""The model that steps train, compile and starve: blocks of a transformer.

Attention is written out, or is PyTorch's scaled_dot_product_attention. Made on
the device, block by block: no copy of it is anywhere else.
"""

import math

import torch
from torch import nn


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, shape):
        super().__init__()
        hidden = shape.hidden
        self.heads, self.fused = shape.heads, shape.fused
        self.norm = nn.LayerNorm(hidden)
        self.mix = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.feed_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, states):
        batch, length, hidden = states.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.mix(self.norm(states)).chunk(3, -1))
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(
                query, key, value)
        else:
            scores = query @ key.transpose(2, 3)
            scores = scores / math.sqrt(hidden / self.heads)
            mixed = scores.softmax(-1) @ value
        mixed = mixed.transpose(1, 2).reshape(batch, length, hidden)
        states = states + self.out(mixed)
        inner = nn.functional.gelu(self.up(self.feed_norm(states)))
        return states + self.down(inner)


class Model(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, shape, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        with torch.device("cuda"):
            self.blocks = nn.ModuleList(
                Block(shape).to(dtype) for _ in range(shape.layers))

    def forward(self, states):
        for block in self.blocks:
            states = block(states)
        return states


def batch(shape, seed, dtype=torch.float32):
    """States to begin with; the same numbers wherever they are made."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape.batch, shape.length, shape.hidden,
                       generator=generator).to("cuda", dtype)


def digest(tensors):
    """One number that depends on every bit of all of them, which are finite."""
    total = 0
    for index, tensor in enumerate(tensors):
        data = tensor.detach().reshape(-1)
        if data.is_floating_point() and data.numel() != 0:
            # Makes nothing of the tensor's size.
            assert all(end.isfinite().item() for end in data.aminmax())
        words = data.view(torch.int32 if data.element_size() == 4
                          else torch.int16)
        # Of int64, in pieces: what is made beside the tensor stays small.
        for number, part in enumerate(words.split(1 << 22)):
            total += (index + 1) * (number + 1) * part.sum(
                dtype=torch.int64).item()
    return total
