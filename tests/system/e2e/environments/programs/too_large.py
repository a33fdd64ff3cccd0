# SPDX-License-Identifier: Apache-2.0
"""Trains a model that is larger than its device; compares with the CPU.

    too_large.py [FOLDER]

32 MiB of weights, as much of gradients and of momentum. trained() is what other
programs of this folder do in each of their processes. As a program it prints
one JSON object, or leaves it in FOLDER, a file for each process.
"""

import json
import os
import pathlib
import sys

import torch
from torch import nn

_LAYERS = 8
_WIDTH = 1024  # 4 MiB a layer


def model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False)
                           for _ in range(_LAYERS)))


def batches(seed, steps=2):
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(4, _WIDTH, generator=generator) for _ in range(steps)]


def trained(layers, inputs, device):
    """The losses, and a copy of the weights in host memory."""
    layers = layers.to(device)
    weights = list(layers.parameters())
    # By hand: torch.optim imports a compiler, which makes a folder for itself.
    momenta = [torch.zeros_like(weight) for weight in weights]
    losses = []
    for values in inputs:
        loss = layers(values.to(device)).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight, momentum in zip(weights, momenta):
                momentum.mul_(0.9).add_(weight.grad)
                weight.sub_(momentum, alpha=0.1)
                weight.grad = None
        losses.append(loss.item())
    return losses, [weight.detach().cpu() for weight in weights]


def same(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def facts():
    """What a test asks of every process: whose allocator, what it moved."""
    import stratalloc

    tiers = stratalloc.report()["tiers"]
    return {"enabled": stratalloc.is_enabled(), "uid": os.getuid(),
            "host_budget": stratalloc.config().host_budget,
            "evicted": tiers["bytes_evicted"],
            "restored": tiers["bytes_restored"],
            "to_disk": tiers["bytes_to_disk"],
            "from_disk": tiers["bytes_from_disk"],
            "disk_mode": tiers["disk_mode"]}


def of_this_process(seed=0, device="cuda"):
    """Trains on the device and on the CPU."""
    torch.set_num_threads(1)
    ours = trained(model(seed), batches(seed), device)
    return {"same": same(ours, trained(model(seed), batches(seed), "cpu")),
            **facts()}


def leave(values, folder):
    pathlib.Path(folder, f"{os.getpid()}.json").write_text(json.dumps(values))


if __name__ == "__main__":
    if sys.argv[1:]:
        leave(of_this_process(), sys.argv[1])
    else:
        print(json.dumps(of_this_process()))
