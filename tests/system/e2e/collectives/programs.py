# SPDX-License-Identifier: Apache-2.0
"""Collectives whose operands somebody evicts while they run.

    python -m tests.system.e2e.collectives.programs NAME --seeds 1-100 --json FILE

One process has imported everything and forks a child for each seed, in async
mode: another order in which the streams' work runs. Each program says how many
results were wrong; the device says what a real one would have punished.

The process group is of one process and late (late_collectives.cc): it copies on
a stream of its own after the call has returned, as NCCL does. gloo, of two
processes, is in ranks.py.
"""

import argparse
import collections
import copy
import ctypes
import json
import os
import random

from python_shim.testing.evicting import evicting
from tests.system.starved import place
from tests.system.starved import zygote

MIB = 1 << 20
CAPACITY = 64 * MIB
LIBRARY = "python_shim/torch_bridge/testing/liblate_collectives.so"


def prepare():
    torch = zygote.prepare(mode="async")
    import torch.distributed as dist

    torch.ops.load_library(os.path.abspath(
        os.environ.get("LATE_COLLECTIVES", LIBRARY)))
    # The creator may give back a process group, and then nothing is put
    # around it.
    dist.Backend.register_backend(
        "late", lambda *_: dist.ProcessGroup.unbox(
            torch.ops.late_collectives.group()), devices=["cuda"])


def pairs(count=4, size=2 * MIB):
    """Tensors outside any scope, which may leave, and their copies."""
    import torch

    kept = [torch.randn(size // 4) for _ in range(count)]
    return (kept, [tensor.cuda() for tensor in kept],
            [torch.zeros(size // 4, device="cuda") for _ in range(count)])


def _wrong(tensors, kept):
    return sum(not tensor.cpu().equal(right)
               for tensor, right in zip(tensors, kept))


def async_op(rng):
    """all_gather and all_reduce, with an eviction before wait()."""
    import torch.distributed as dist

    import stratalloc

    kept, ours, out = pairs()
    wrong = 0
    for _ in range(3):
        works = [dist.all_gather_into_tensor(into, tensor, async_op=True)
                 for into, tensor in zip(out, ours)]
        stratalloc.evict()
        rng.shuffle(works)
        for work in works:
            work.wait()
        works = [dist.all_reduce(into, async_op=True) for into in out]
        stratalloc.evict()
        for work in works:
            work.wait()
        wrong += _wrong(out, kept)
        for tensor, right, into in zip(ours, kept, out):
            tensor.add_(1)
            right.add_(1)
            into.zero_()
        del works, work
    return wrong


def dropped(rng):
    """A Work that nobody keeps; the copies run all the same."""
    import torch
    import torch.distributed as dist

    import stratalloc

    kept, ours, out = pairs()
    wrong = 0
    for _ in range(3):
        for into, tensor in zip(out, ours):
            dist.all_gather_into_tensor(into, tensor, async_op=True)
            if rng.random() < .5:
                stratalloc.evict()
        stratalloc.evict()
        torch.cuda.synchronize()
        wrong += _wrong(out, kept)
        for into in out:
            into.zero_()
    return wrong


def synchronous(rng):
    """Collectives that give no Work back, beside a thread that evicts."""
    import torch.distributed as dist

    kept, ours, out = pairs()
    wrong = 0
    with evicting():
        for _ in range(2):
            for into, tensor in rng.sample(list(zip(out, ours)), len(out)):
                dist.all_gather_into_tensor(into, tensor)
                dist.all_reduce(into)
            wrong += _wrong(out, kept)
            for into in out:
                into.zero_()
    return wrong


def functional(rng):
    """The collectives that compiled code is made of."""
    import torch
    import torch.distributed._functional_collectives as collectives

    import stratalloc

    del rng
    kept, ours, _ = pairs()
    group = torch.distributed.group.WORLD
    wrong = 0
    for _ in range(2):
        made = [collectives.all_gather_tensor(tensor, 0, group)
                for tensor in ours]
        made += [collectives.all_reduce(tensor, "sum", group)
                 for tensor in ours]
        stratalloc.evict()
        made = [collectives.wait_tensor(tensor) for tensor in made]
        wrong += _wrong(made, kept * 2)
        made = collectives.all_reduce_coalesced(ours, "sum", group)
        stratalloc.evict()
        wrong += _wrong(made, kept)
        del made
    return wrong


def coalescing(rng):
    """Nothing is launched before the manager's end; evictions all along."""
    import torch
    import torch.distributed as dist

    import stratalloc

    kept, ours, out = pairs()
    group = dist.group.WORLD
    received = torch.full((2 * MIB // 4,), 0x40404040, dtype=torch.int32)
    received = received.view(torch.float32)
    wrong = 0
    for _ in range(2):
        with dist.distributed_c10d._coalescing_manager(
                device=torch.device("cuda"), async_ops=True) as manager:
            for into, tensor in zip(out, ours):
                group.send([tensor], 0, 0)
                group.recv([into], 0, 0)
                if rng.random() < .5:
                    stratalloc.evict()
            stratalloc.evict()
        stratalloc.evict()
        manager.wait()
        wrong += _wrong(out, [received] * len(out))
        # What all_gather_into_tensor collects is one operator at the end.
        with dist.distributed_c10d._coalescing_manager() as manager:
            for into, tensor in zip(out, ours):
                dist.all_gather_into_tensor(into, tensor)
            stratalloc.evict()
        stratalloc.evict()
        wrong += _wrong(out, kept)
    return wrong


def captured(rng):
    """In a graph; its operands are the graph's, which runs again later."""
    import torch
    import torch.distributed as dist

    import stratalloc

    del rng
    kept, ours, out = pairs()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for into, tensor in zip(out, ours):
            dist.all_gather_into_tensor(into, tensor, async_op=True).wait()
    wrong = 0
    for _ in range(3):
        more = [tensor.cuda() for tensor in kept]
        stratalloc.evict()
        graph.replay()
        stratalloc.evict()
        torch.cuda.synchronize()
        wrong += _wrong(out, kept) + _wrong(more, kept)
        for into in out:
            into.zero_()
    return wrong


def layers():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(),
                         nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 8))


def train(model, device, local=lambda parameter: parameter):
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(8, 256).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [local(p).detach().cpu() for p in model.parameters()]


def _against_the_cpu(parallel, local=lambda parameter: parameter):
    import torch

    right_losses, right = train(copy.deepcopy(layers()), "cpu")
    with evicting() as evictions:
        model = parallel(layers().cuda())
        evictions.await_first()  # on a busy machine the program ends first
        losses, ours = train(model, "cuda", local)
    return (sum(one != other for one, other in zip(losses, right_losses))
            + sum(not torch.equal(one, other)
                  for one, other in zip(ours, right)))


def ddp(rng):
    """DistributedDataParallel beside a thread that evicts: as on the CPU."""
    from torch.nn.parallel import DistributedDataParallel

    del rng
    return _against_the_cpu(
        lambda model: DistributedDataParallel(model, bucket_cap_mb=1))


def sharded(model):
    """Each layer by itself, and the rest."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def fsdp(rng):
    """fully_shard, the same."""
    del rng
    return _against_the_cpu(sharded, lambda p: p.to_local())


PROGRAMS = {program.__name__: program for program in (
    async_op, dropped, synchronous, functional, coalescing, captured, ddp,
    fsdp)}


def run(name, seed, _):
    """In a child: one program under one seed."""
    import torch.distributed as dist

    from stratalloc import simulate

    simulate.driver().cudasim_set_seed(ctypes.c_uint64(seed))
    place.device(CAPACITY)
    dist.init_process_group("late", store=dist.HashStore(), rank=0,
                            world_size=1)
    import torch

    wrong = PROGRAMS[name](random.Random(seed))
    torch.cuda.synchronize()
    return {"wrong": wrong, "faults": place.faults(), "moved": place.moved()}


def main(programs, function, right=lambda name: None):
    """function(name, seed, right(name)) for each seed, in children."""
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", choices=programs, nargs="+")
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--json")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    prepare()
    table = {}
    for name in options.programs:
        table[name] = _row(name, range(int(first), int(last or first) + 1),
                           function, right)
        print(name, table[name], flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as text:
            json.dump(table, text)


def _row(name, seeds, function, right):
    row = {"seeds": len(seeds), "wrong": 0, "out": 0}
    faults = collections.Counter()
    expected = zygote.run(right, name)
    for seed in seeds:
        try:
            result = zygote.run(function, name, seed, expected, timeout=120)
        except (zygote.Died, zygote.Refused) as error:
            faults[str(error)[-300:]] += 1
            continue
        row["wrong"] += result["wrong"]
        row["out"] += result["moved"]["out"]
        faults.update(result["faults"])
    return row | {"faults": dict(faults.most_common(5))}


if __name__ == "__main__":
    main(PROGRAMS, run)
