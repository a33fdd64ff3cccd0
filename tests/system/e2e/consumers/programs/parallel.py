# SPDX-License-Identifier: Apache-2.0
"""DDP and FSDP2 over gloo: two processes, each with a device of its own."""

import gc
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from consumer import counts
from consumer import digest
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def _train(model, rank, local):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(8, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": [
        digest(local(p)) for p in model.parameters()], "counts": _settled()}


def _settled():
    """The counts when nothing is under way any more.

    The other process and gloo's threads decide when the last blocks that were
    recorded on a stream are freed, and until the next allocation after their
    events they are active, under every allocator.
    """
    dist.barrier()
    gc.collect()
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    return counts()


def _layers():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 300), nn.GELU(), nn.Linear(300, 300), nn.GELU(),
        nn.Linear(300, 8)).cuda()


def _ddp(rank):
    model = DistributedDataParallel(_layers(), bucket_cap_mb=0.2)
    return _train(model, rank, lambda p: p)


def _fsdp(rank):
    model = _layers()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    # Not full_tensor(): gloo gathers in host memory only, and says so by
    # reading device addresses, under every allocator.
    return _train(model, rank, lambda p: p.to_local())


def two_processes():
    """The first process starts the second, which runs this very function."""
    rank = int(os.environ.get("RANK", "0"))
    other = None
    if rank == 0:
        os.environ["RENDEZVOUS"] = os.path.join(
            tempfile.mkdtemp(dir=os.environ["FOLDER"]), "store")
        other = subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, "RANK": "1"},
            stdout=subprocess.DEVNULL)
    try:
        dist.init_process_group(
            "gloo", init_method="file://" + os.environ["RENDEZVOUS"],
            rank=rank, world_size=2)
        saw = {"ddp": _ddp(rank), "fsdp": _fsdp(rank)}
        dist.barrier()
        dist.destroy_process_group()
    finally:
        if other is not None:
            ended = other.wait(timeout=240)
    if other is not None:
        saw["other"] = ended
    return saw
