# SPDX-License-Identifier: Apache-2.0
"""How much of what the device held at its peak has a module and a category.

    attribution.py [CASE...]

Prints a JSON object: case -> {"peak", "module", "category", "attributed",
"rest", "nodes"}: bytes, the shares of it that have a module, a category and
both, what has not both, and autograd nodes without a scope.
"""

import contextlib
import gc
import json
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stratalloc

DEVICE = "cuda"
VOCABULARY, WIDTH, BATCH, LENGTH = 500, 128, 8, 32


class Model(nn.Module):
    """A language model; its loss is a module of its own, as Trainers have."""

    def __init__(self, tied=False, checkpointed=False, layer=None):
        super().__init__()
        layer = layer or (lambda: nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.1))
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([layer() for _ in range(3)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.loss = nn.CrossEntropyLoss()
        self.checkpointed = checkpointed
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, labels=None):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = (checkpoint(layer, x, use_reentrant=False)
                 if self.checkpointed else layer(x))
        x = self.head(x)
        if labels is None:
            return x
        return self.loss(x.flatten(0, 1), labels.flatten())


class LowRank(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Experts(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList([nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH)) for _ in range(count)])

    def forward(self, x):
        weight = self.gate(x).softmax(-1)
        best = weight.argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = best == i
            out[mine] = expert(x[mine]) * weight[mine][:, i:i + 1]
        return x + out


def reduced(model):
    """A replica of one: buckets and hooks are as of many."""
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)


def sharded(model):
    """Each layer by itself, and the rest."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def alone(wrap):
    """In a process group of one; sharded parameters want one, too."""
    def case():
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            return train(Model(), wrap=wrap)
        finally:
            torch.distributed.destroy_process_group()
    return case


def tokens():
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), device=DEVICE)


def train(model, wrap=None, half=False, parts=1, optimizer=torch.optim.AdamW,
          steps=3):
    model = model.to(DEVICE)
    wrapped = wrap(model) if wrap else model
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler(DEVICE, enabled=half)
    for _ in range(steps):
        for _ in range(parts):
            with (torch.autocast(DEVICE, torch.float16) if half
                  else contextlib.nullcontext()):
                loss = wrapped(tokens(), tokens())
            scaler.scale(loss.mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return measure()


def infer():
    model = Model().to(DEVICE).eval()
    with torch.no_grad():
        for _ in range(2):
            model(tokens())
    return measure()


def low_rank():
    model = Model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.layers:
        layer.linear1 = LowRank(layer.linear1)
        layer.linear2 = LowRank(layer.linear2)
    return train(model)


def generate():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=3, n_head=4,
        n_positions=64, bos_token_id=1, eos_token_id=2)).to(DEVICE).eval()
    prompt = torch.randint(0, VOCABULARY, (2, 5), device=DEVICE)
    model.generate(prompt, max_new_tokens=10, do_sample=False, pad_token_id=0)
    return measure()


CASES = {
    "inference": infer,
    "training": lambda: train(Model()),
    "checkpointed": lambda: train(Model(checkpointed=True)),
    "half precision": lambda: train(Model(), half=True),
    "low rank": low_rank,
    "accumulation": lambda: train(Model(), parts=3),
    "tied weights": lambda: train(Model(tied=True)),
    "momentum": lambda: train(Model(), optimizer=lambda parameters: (
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9))),
    "experts": lambda: train(Model(layer=Experts)),
    "generate": generate,
    "DataParallel": lambda: train(Model(), wrap=nn.DataParallel),
    "DistributedDataParallel": alone(reduced),
    "fully_shard": alone(sharded),
    "aot_eager": lambda: train(Model(), wrap=lambda model: torch.compile(
        model, backend="aot_eager")),
}


def measure():
    peak = stratalloc.peak()
    nobodys = [row for row in peak.rows if row.name.startswith("(")]
    unknown = [row for row in peak.rows if row.category == "unknown"]
    rest = nobodys + [row for row in unknown if row not in nobodys]
    assert peak.total == torch.cuda.max_memory_allocated()

    def share(without):
        return 1 - sum(row.bytes for row in without) / peak.total

    return {
        "peak": peak.total,
        "module": share(nobodys),
        "category": share(unknown),
        "attributed": share(rest),
        "rest": {f"{row.name}, {row.category}": row.bytes for row in rest},
        "nodes": stratalloc.report()["nodes_without_scope"],
    }


def main():
    found = {}
    for name in sys.argv[1:] or CASES:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        found[name] = CASES[name]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
