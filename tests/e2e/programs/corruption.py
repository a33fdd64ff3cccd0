# SPDX-License-Identifier: Apache-2.0
"""One flipped byte in the spill file, met through one of three doors.

    corruption.py module|thread|backward

Prints the exception that reached this program; exits 4 if a number got
through instead.
"""

import sys
import threading

door = sys.argv[1]

import torch
from torch import nn

import stratalloc
from stratalloc import _core


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2048, 2048, bias=False)
        self.second = nn.Linear(2048, 2048, bias=False)
        self.third = nn.Linear(2048, 2048, bias=False)

    def forward(self, states):
        return self.third(self.second(self.first(states)))


torch.manual_seed(0)
net = Net().to("cuda")
inputs = torch.ones(2, 2048, device="cuda")
loss = net(inputs).sum() if door == "backward" else None
stratalloc.evict()
assert sum(row["disk"] for row in stratalloc.report()["layers"]) > 0, (
    stratalloc.memory_summary())
_core.test_hook("flip_spill_byte", "second")


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
