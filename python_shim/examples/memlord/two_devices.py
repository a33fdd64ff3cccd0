# SPDX-License-Identifier: Apache-2.0
"""Two GPUs, one model in two halves: who allocated what where, and when what is
free is given back.

A pipeline of two stages: the first half computes on cuda:0, its activations
move to cuda:1 without waiting, the second half computes there. MemLord counts
all of it by device, and collects a device of which much was freed.
"""

import torch
from torch import nn

import stratalloc
from stratalloc.compat.memlord import MemLord

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


def stage(device):
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(),
                         nn.Linear(2048, 512)).to(device)


def activations(batch):
    return torch.randn(batch, 512, device=FIRST)


def show(mem, when):
    print(when)
    for device in (FIRST, SECOND):
        print(f"  {device}: {mem.allocated(device)[1]} allocated "
              f"(PyTorch says {torch.cuda.memory_allocated(device):,} bytes, "
              f"MemLord {mem.allocated(device)[0]:,}), "
              f"{mem.freed(device)[1]} freed")


def main():
    torch.manual_seed(0)
    mem = MemLord(auto_gc_strategy={}, track_callsite=True)
    mem.hook_into_torch()
    mem.hook_into_python()

    first, second = stage(FIRST), stage(SECOND)
    show(mem, "the model in two halves")

    with torch.no_grad():
        x = activations(2048)
        for _ in range(2):
            handed = first(x).to(SECOND, non_blocking=True)
            y = second(handed)
        torch.cuda.synchronize()
    show(mem, "after two batches")

    device, line, size = mem.top_alloc_site(FIRST)
    print(f"most was allocated on {device} by {line}: {size:,} bytes")

    # From 4 MiB on, what was freed of a device makes it be collected.
    mem.set_auto_gc_strategy({(0, 101): {
        "metric": "freed", "threshold": {"bytes": 4 << 20}}})
    del x, handed
    mem.free(y)
    del y
    show(mem, "the data are gone, and both devices were collected")
    print(f"reserved on {SECOND}: {torch.cuda.memory_reserved(SECOND):,} bytes")

    # What no hook sees, the allocator does: everything, by who owns it.
    owners = stratalloc.holders(device=0)
    print(f"the allocator's own: {owners.total:,} bytes on {FIRST}")


if __name__ == "__main__":
    main()
