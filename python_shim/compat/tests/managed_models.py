# SPDX-License-Identifier: Apache-2.0
"""For tests of memory_management: managers that the test ends, models, and what
a manager may not leave behind. Import it where torch may be imported."""

import gc
import os
import threading

import pytest
import torch
from torch import nn

from stratalloc.compat import memory_management as mm
from stratalloc.compat.memory_management import spilled

WAIT = 60  # seconds until a thread that hangs fails its test

# torch dresses an optimizer's class when the first one is made.
torch.optim.SGD([nn.Parameter(torch.ones(1))])


def left_behind():
    """What a manager may not leave: threads, descriptors, hooks, methods."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (sorted(one.name for one in threading.enumerate()),
            len(os.listdir("/proc/self/fd")),
            *(len(hooks) for hooks in (
                module._global_forward_hooks, module._global_forward_pre_hooks,
                optimizer._global_optimizer_pre_hooks,
                optimizer._global_optimizer_post_hooks)),
            len(spilled._uses),
            nn.Linear.__call__, nn.Linear._apply, nn.Module.__setattr__,
            torch.Tensor.to, torch.optim.SGD.step,
            torch.distributed._broadcast_coalesced)


@pytest.fixture(autouse=True)
def nothing_left():
    before = left_behind()
    yield
    if left_behind() != before:
        gc.collect()  # what is only held by a cycle is not left
    assert left_behind() == before


@pytest.fixture(name="managed")
def managed_fixture():
    """managed(model, **options): an unstarted manager, ended by the test."""
    made = []

    def manage(model, layer_types=None, **options):
        manager = mm.MemoryManager(mm.MemoryConfig(**options))
        made.append(manager)
        manager.wrap_model(model, layer_types)
        return manager

    yield manage
    for manager in made:
        manager.cleanup()


def towers():
    """A small model, the same one each time."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64),
                         nn.Linear(64, 10))


def away(model):
    """Names of its parameters that are in a spill file."""
    return [name for name, one in model.named_parameters()
            if spilled.is_away(one)]


def calls_beside_moves(manager, threads, calls, size, same):
    """Threads that ask `same(batch)` of random batches, each so often, while
    another offloads and loads without pause; it holds each time."""
    over, wrong = threading.Event(), []

    def run(seed):
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(calls):
                if not same(torch.randn(size, generator=made)):
                    wrong.append(seed)

    def move():
        while not over.is_set():
            manager.offload_all()
            manager.load_all()

    mover = threading.Thread(target=move)
    runners = [threading.Thread(target=run, args=(seed,))
               for seed in range(threads)]
    for one in (mover, *runners):
        one.start()
    for one in runners:
        one.join()
    over.set()
    mover.join()
    assert wrong == []
