# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer for a few steps; prints losses and addresses as JSON.

    training.py --device cuda|cpu [--hidden 384 --layers 6 --words 30522 ...]

Eager attention, dropout 0, AdamW. On the CPU with the same arguments the
losses must be the same, bit for bit. What parameters, gradients and optimizer
state take is added up from the tensors that there are after the last step, and
what the largest list operator was given from its arguments. What the libraries'
workspaces take is what is reserved when all tensors are gone.
"""

import argparse
import gc
import json
import math
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
parser.add_argument("--hidden", type=int, default=384)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--words", type=int, default=30522)
parser.add_argument("--length", type=int, default=16)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--foreach", choices=("off", "default"), default="off")
args = parser.parse_args()

import torch
from torch import nn


_listed = {"calls": 0, "largest": 0}


def _storages(values):
    """{address: bytes} of all tensors of the device in them, one by one or in
    lists."""
    found = {}
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == args.device:
            storage = value.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, (list, tuple)):
            found.update(_storages(value))
    return found


def _note_lists(name):
    """torch's list operators, which its optimizers call by these names."""
    original = getattr(torch, name)

    def called(*arguments, **named):
        size = sum(_storages([*arguments, *named.values()]).values())
        _listed["calls"] += 1
        _listed["largest"] = max(_listed["largest"], size)
        return original(*arguments, **named)

    setattr(torch, name, called)


for each in [name for name in dir(torch) if name.startswith("_foreach_")]:
    _note_lists(each)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, attention written out."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.feed_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, states):
        batch, length, hidden = states.shape
        normed = self.norm(states)

        def split(tensor):
            return tensor.view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = (split(part(normed)) for part in
                             (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(hidden / self.heads)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2)
        states = states + self.out(mixed.reshape(batch, length, hidden))
        inner = nn.functional.gelu(self.up(self.feed_norm(states)))
        return states + self.down(inner)


class Model(nn.Module):
    """Token and position embeddings, blocks, a classifier of two classes."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(args.words, args.hidden)
        self.positions = nn.Embedding(args.length, args.hidden)
        self.blocks = nn.ModuleList(
            Block(args.hidden, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden)
        self.head = nn.Linear(args.hidden, 2)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.words(tokens) + self.positions(places)
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states).mean(1))


torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
generator = torch.Generator().manual_seed(1)
data = [(torch.randint(args.words, (args.batch, args.length),
                       generator=generator),
         torch.randint(2, (args.batch,), generator=generator))
        for _ in range(args.steps)]
model.to(args.device)
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(
    parameters, lr=1e-3, foreach=False if args.foreach == "off" else None)
addresses = [parameter.untyped_storage().data_ptr() for parameter in parameters]
losses, moved = [], []


def compare(step):
    for index, parameter in enumerate(parameters):
        if parameter.untyped_storage().data_ptr() != addresses[index]:
            moved.append((step, index))


for step, (tokens, targets) in enumerate(data):
    optimizer.zero_grad(set_to_none=True)
    output = model(tokens.to(args.device))
    loss = nn.functional.cross_entropy(output, targets.to(args.device))
    loss.backward()
    compare(f"{step} backward")
    optimizer.step()
    compare(f"{step} step")
    losses.append(loss.item().hex())
    print(f"step {step}: {loss.item():.6f}", file=sys.stderr)

held = _storages([parameters, [p.grad for p in parameters],
                  *(list(state.values())
                    for state in optimizer.state.values())])
result = {
    "losses": losses, "moved": moved, "total_bytes": sum(held.values()),
    "lists": _listed["calls"], "largest_list": _listed["largest"],
    "sums": [parameter.detach().double().sum().item().hex()
             for parameter in parameters],
}
if args.device == "cuda":
    import stratalloc
    from stratalloc import simulate

    result["report"] = stratalloc.report()
    result["counters"] = simulate.counters()
    result["violations"] = simulate.violations()[:5]
    result["peak_allocated"] = torch.cuda.max_memory_allocated()
    del model, parameters, optimizer, output, loss
    gc.collect()
    torch.cuda.empty_cache()
    result["workspaces"] = torch.cuda.memory_reserved()
    left = stratalloc.report()["stays"]
    assert set(left) <= {"library workspaces"}, left
print(json.dumps(result))
