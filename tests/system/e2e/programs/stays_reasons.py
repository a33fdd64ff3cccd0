# SPDX-License-Identifier: Apache-2.0
"""Each reason to stay, made one after the other: exact to the byte."""

import torch
from torch import nn

import stratalloc

MIB = 1 << 20


def stays():
    stratalloc.evict()
    report = stratalloc.report()
    assert sum(report["stays"].values()) == report["allocated"]["current"], (
        report["stays"], report["allocated"])
    return report["stays"]


class Doubles(nn.Module):
    """Its result is an activation, and nothing else."""

    def forward(self, x):
        return x * 2


class Copies(nn.Module):
    """A copy of an activation is one; of a weight it may leave."""

    def forward(self, x):
        self.of_weight = x.clone()
        h = x * 2
        return [h, h.clone(), h.to(torch.int16),
                h.view(3, MIB).t().contiguous()]


weight = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
assert stays() == {}, stays()

activation = Doubles()(weight)
assert stays() == {"activations": 3 * MIB}, stays()

raw = torch.cuda.caching_allocator_alloc(2 * MIB)
assert stays() == {"activations": 3 * MIB, "raw memory": 2 * MIB}, stays()
try:
    torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    text = str(error)
# What is in the way is named: the card, or gpu_limit on a larger one.
card = torch.cuda.get_device_properties(0).total_memory
assert ("The tensor is larger than the card: use a smaller batch, a smaller "
        "dtype or smaller parts. No setting helps." if card < 200 * MIB else
        "The tensor is larger than gpu_limit allows, 64.00 MiB: raise "
        "gpu_limit, or use a smaller batch, dtype or parts.") in text, text
assert "activations" not in text, text  # they are not the cause
assert "3 MiB activations, 2 MiB raw memory" in stratalloc.memory_summary(), (
    stratalloc.memory_summary())
torch.cuda.caching_allocator_delete(raw)
del activation
assert stays() == {}, stays()
# The mark goes with the block.
again = [torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
         for _ in range(4)]
assert stays() == {}, stays()
del again

copies = Copies()
activations = copies(weight)
assert stays() == {"activations": (3 + 3 + 6 + 3) * MIB}, stays()
del copies, activations

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static = weight + 1
found = stays()
# The weight. Before torch 2.12 a capture that draws no random numbers reads seed
# and offset of the generator, too.
generator = 2 * 512 if int(torch.__version__.split(".")[1]) < 12 else 0
assert found.pop("pinned by a graph") == 3 * MIB + generator, found
assert found.pop("in private pools") >= 3 * MIB, found
assert found == {}, found
del static
graph.reset()
del graph
assert stays() == {}, stays()
print("ok")
