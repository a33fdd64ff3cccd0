# SPDX-License-Identifier: Apache-2.0
"""Module by module what PyTorch's MemTracker says, and what we say.

    mem_tracker.py MODEL

Prints {"modules": {name: [theirs, ours]}, "peak": {category: [theirs, ours]}}:
the most on the device while the module ran, and what the device held when it
held the most. MemTracker follows tensors through the dispatcher, we follow
blocks; of the two neither asks the other.
"""

import json
import sys

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

import stratalloc

# Ours beside theirs. A gradient is one to them when a hook of the parameter has
# seen it, to us when it is allocated; and they have no name for inputs and for
# what dies with its module.
GROUPS = {"parameter": ("PARAM",), "buffer": ("BUFFER",),
          "optimizer_state": ("OPT",), "rest": ("GRAD", "ACT", "TEMP", "OTH")}


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.BatchNorm1d(size)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.layers = nn.ModuleList([Layer(128) for _ in range(3)])
        self.head = nn.Linear(128, 16)
        self.loss = nn.MSELoss()
        self.checkpointed = checkpointed

    def forward(self, x, y):
        x = self.first(x)
        for layer in self.layers:
            x = (checkpoint(layer, x, use_reentrant=False)
                 if self.checkpointed else layer(x))
        return self.loss(self.head(x), y)


def compare(optimizer, checkpointed=False):
    model = Net(checkpointed).cuda()
    optimizer = optimizer(model.parameters())
    tracker = MemTracker()
    tracker.track_external(model, optimizer)

    def step():
        x = torch.randn(256, 64, device="cuda")
        model(x, torch.randn(256, 16, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()

    with tracker:
        step()  # the optimizer's state is there
        tracker.reset_mod_stats()
        torch.cuda.reset_peak_memory_stats()
        step()
    device = torch.device("cuda", 0)
    ours = {row["owner"]: row["peak_allocated"]
            for row in stratalloc.report()["scopes"]}
    modules = {each.mod_fqn: [each.local_peak[device], ours.get(each.mod_fqn)]
               for each in tracker.memory_tracking.values()}
    theirs = {str(kind).rsplit(".", maxsplit=1)[-1]: size for kind, size in
              tracker.get_tracker_snapshot("peak")[device].items()}
    peak = {group: [sum(theirs[name] for name in names), 0]
            for group, names in GROUPS.items()}
    for row in stratalloc.peak().rows:
        peak[row.category if row.category in peak else "rest"][1] += row.bytes
    return {"modules": modules, "peak": peak}


# One a process: a tracker keeps what it has seen.
MODELS = {
    "adam": lambda: compare(lambda p: torch.optim.AdamW(p, foreach=False)),
    "momentum": lambda: compare(lambda p: torch.optim.SGD(
        p, .1, momentum=.9, foreach=False)),
    "checkpointed": lambda: compare(lambda p: torch.optim.SGD(
        p, .1, foreach=False), checkpointed=True),
}

if __name__ == "__main__":
    print(json.dumps(MODELS[sys.argv[1]]()))
