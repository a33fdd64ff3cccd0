# SPDX-License-Identifier: Apache-2.0
"""Two processes over gloo, each with a device of its own and a thread that
evicts.

    python -m tests.system.e2e.collectives.ranks NAME --seeds 1-20 --json FILE

DistributedDataParallel and fully_shard train as the same two processes do when
nothing is evicted. Options and output as in programs.py.
"""

import ctypes
import os
import pickle
import tempfile

from python_shim.testing.evicting import evicting
from tests.system.e2e.collectives import programs
from tests.system.starved import place


def _ddp():
    from torch.nn.parallel import DistributedDataParallel

    return programs.train(
        DistributedDataParallel(programs.layers().cuda(), bucket_cap_mb=1),
        "cuda")


def _fsdp():
    return programs.train(programs.sharded(programs.layers().cuda()), "cuda",
                          lambda p: p.to_local())


def _async_op():
    import torch
    import torch.distributed as dist

    kept, ours, _ = programs.pairs()
    results = []
    for _ in range(3):
        works = [dist.all_reduce(tensor, async_op=True) for tensor in ours]
        for work in works:
            work.wait()
        results += [tensor.cpu() for tensor in ours]
    both = dist.get_world_size()
    right = [tensor * both**(i + 1) for i in range(3) for tensor in kept]
    assert all(torch.allclose(one, other)
               for one, other in zip(results, right))
    return [], results


TRAINED = {"ddp": _ddp, "fsdp": _fsdp, "async_op": _async_op}


def _rank(rank, store, name, seed, evicts):
    """What one process computed and what its device says."""
    import torch
    import torch.distributed as dist

    from stratalloc import simulate

    simulate.driver().cudasim_set_seed(ctypes.c_uint64(seed + rank))
    place.device(programs.CAPACITY)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank,
                            world_size=2)
    torch.manual_seed(0)
    if evicts:
        with evicting():
            result = TRAINED[name]()
    else:
        result = TRAINED[name]()
    torch.cuda.synchronize()
    dist.barrier()
    return result, place.faults(), place.moved()


def _together(name, seed, evicts):
    """Both ranks; this process is the first."""
    with tempfile.TemporaryDirectory() as folder:
        store, other = (os.path.join(folder, file) for file in ("store", "1"))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with open(other, "wb") as file:
                    pickle.dump(_rank(1, store, name, seed, evicts), file)
                code = 0
            finally:
                os._exit(code)  # pylint: disable=protected-access
        first = _rank(0, store, name, seed, evicts)
        assert os.waitpid(pid, 0)[1] == 0, "the other rank failed"
        with open(other, "rb") as file:
            return first, pickle.load(file)


def right(name):
    """What both ranks compute when nothing is evicted."""
    return [result for result, _, _ in _together(name, 0, False)]


def run(name, seed, rights):
    """In a child: one program under one seed."""
    import torch

    ranks = _together(name, seed, True)
    wrong = 0
    for (losses, tensors), (right_losses, right_tensors) in zip(
            [result for result, _, _ in ranks], rights):
        wrong += losses != right_losses
        wrong += sum(not torch.equal(one, other)
                     for one, other in zip(tensors, right_tensors))
    return {"wrong": wrong,
            "faults": [text for _, faults, _ in ranks for text in faults],
            "moved": {"out": sum(moved["out"] for _, _, moved in ranks)}}


if __name__ == "__main__":
    programs.main(TRAINED, run, right)
