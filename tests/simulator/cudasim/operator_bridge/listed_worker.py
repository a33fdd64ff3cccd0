# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train together over gloo on simulated devices.

Started by listed_training.py: RANK and WORLD_SIZE in the environment, the kind
("ddp" or "fsdp") and a folder for the store and the result as arguments. Each
process has a simulated machine of its own; gloo carries the bytes through
pinned host memory.
"""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="64MiB")

# pylint: disable=wrong-import-position
import os
import sys

import torch
import torch.distributed as dist

from tests.simulator.cudasim.operator_bridge import listed_training


def _wrap(kind, model):
    # pylint: disable=import-outside-toplevel
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[0])
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (2,))
    for layer in (model[0], model[2], model[3]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _whole(kind, wrapped):
    if kind == "ddp":
        return {k: v.cpu() for k, v in wrapped.module.state_dict().items()}
    whole = {}
    for name, value in wrapped.state_dict().items():
        # full_tensor() would gather on the device with a form that gloo has
        # for host memory only: it reads device addresses, here and on a card.
        shard = value.to_local().cpu()
        shards = [torch.empty_like(shard) for _ in range(2)]
        dist.all_gather(shards, shard)
        whole[name] = torch.cat(shards)
    return whole


def main(kind, folder):
    """Three steps on this rank's half of the batch."""
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    wrapped = _wrap(kind, listed_training.distributed_model().cuda())
    optimizer = listed_training.make_adamw(wrapped.parameters())
    batch = listed_training.distributed_batch().chunk(2)[rank].cuda()
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(batch).square().mean().backward()
        optimizer.step()
    result = _whole(kind, wrapped)
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.violations() == []
    if rank == 0:
        torch.save(result, os.path.join(folder, "result.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # Not through the interpreter's end: autograd's threads may still want its
    # lock there, and PyTorch then terminates the process.
    sys.stdout.flush()
    os._exit(0)
