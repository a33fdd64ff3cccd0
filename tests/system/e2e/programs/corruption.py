# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in the spill file, met through one of three doors.

    corruption.py module|thread|backward

Prints the exception that reached this program; exits 4 if a number got
through instead.
"""

import mmap
import os
import sys
import threading

door = sys.argv[1]

import torch
from torch import nn

import stratalloc


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2048, 2048, bias=False)
        self.second = nn.Linear(2048, 2048, bias=False)
        self.third = nn.Linear(2048, 2048, bias=False)

    def forward(self, states):
        return self.third(self.second(self.first(states)))


def flip_a_bit_of(value):
    """Of one chunk in the spill file that holds bytes of `value`: the file has
    no name, but the process has it open."""
    data = value.numpy().tobytes()
    folder = os.path.realpath(stratalloc.config().disk_dir)
    for descriptor in os.listdir("/proc/self/fd"):
        path = "/proc/self/fd/" + descriptor
        name = os.readlink(path) if os.path.lexists(path) else ""
        if not name.startswith(folder + "/") or "(deleted)" not in name:
            continue
        with open(path, "rb+") as file, mmap.mmap(file.fileno(), 0) as spilled:
            for start in range(0, len(data), 1 << 20):
                at = spilled.find(data[start:start + 256])
                if at >= 0:
                    spilled[at] ^= 1
                    return
    sys.exit(f"nothing of it is in an unnamed file of {folder}")


torch.manual_seed(0)
net = Net()
second = net.second.weight.detach().clone()
net = net.to("cuda")
inputs = torch.ones(2, 2048, device="cuda")
loss = net(inputs).sum() if door == "backward" else None
stratalloc.evict()
assert sum(row["disk"] for row in stratalloc.report()["layers"]) > 0, (
    stratalloc.memory_summary())
flip_a_bit_of(second)


def expect(function):
    try:
        value = function()
        value = None if value is None else value.cpu()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    print(f"no error; got {value}")
    sys.exit(4)


if door == "module":
    text = expect(lambda: net(inputs))
elif door == "backward":
    text = expect(loss.backward)
else:
    results = []

    def body():
        try:
            results.append(net.second.weight.sum().item())
        except RuntimeError as error:
            results.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    text = results[0]
    if not isinstance(text, str):
        print(f"no error; got {text}")
        sys.exit(4)
print(text)
# Poisoned: every later use raises again, others go on.
print(expect(net.second.weight.sum))
assert torch.isfinite(net.third.weight.sum()).item()
