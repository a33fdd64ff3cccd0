# SPDX-License-Identifier: Apache-2.0
"""What of a program can leave the device, and what does not.

`results` collects a line per case; a program prints them as JSON at its end.
"""

import gc
import json

import torch

import stratalloc
from stratalloc._tiering import tiers as _tiers

results = {}


def tensors_of(*objects):
    """Every tensor of modules, optimizers, dicts and lists, gradients too."""
    for thing in objects:
        if isinstance(thing, torch.Tensor):
            yield thing
            if thing.is_leaf and thing.grad is not None:
                yield thing.grad
        elif isinstance(thing, torch.nn.Module):
            yield from tensors_of(*thing.parameters(), *thing.buffers())
        elif isinstance(thing, torch.optim.Optimizer):
            yield from tensors_of(dict(thing.state))
        elif isinstance(thing, dict):
            yield from tensors_of(*thing.values())
        elif isinstance(thing, (list, tuple)):
            yield from tensors_of(*thing)


def stuck(*objects):
    """Bytes of these tensors that are still on the device."""
    return sum(_tiers.residency(tensor)["device"]
               for tensor in tensors_of(*objects))


def look(name, *objects):
    """Evicts everything; notes what of `objects` and what else stays."""
    gc.collect()
    torch.cuda.synchronize()
    assert any(tensor.numel() for tensor in tensors_of(*objects)), name
    stratalloc.evict()
    report = stratalloc.report()
    line = {"stuck": stuck(*objects),
            "allocated": report["allocated"]["current"],
            "stays": report.get("stays", {})}
    results[name] = line
    return line


def finish():
    print(json.dumps(results))
