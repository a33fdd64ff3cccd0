# SPDX-License-Identifier: Apache-2.0
"""A program that is out of memory in each way that there is a verdict for.

    refused_program.py '{"settings": {...}, "cases": ["live", ...]}'

On a card of 64 MiB. Each case is refused once, applies the first suggestion and
asks again. The last line printed is JSON: {case: {"report", "message", "moved"
(of the device's memory by writing it), "applied"}}; "applied" is what became of
the same request then, null where a setting has to be given to a new process.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys

OPTIONS = json.loads(sys.argv[1])

from stratalloc import simulate  # noqa: E402

simulate.load("64MiB")

import torch  # noqa: E402

import stratalloc  # noqa: E402

MIB = 1 << 20
stratalloc.enable(**OPTIONS["settings"])
torch.cuda.init()
SIM = simulate.driver()
SIM.cudasim_take_memory.argtypes = [ctypes.c_int, ctypes.c_uint64]
SIM.cudasim_used.restype = ctypes.c_uint64


def make(size):
    return torch.empty(int(size), dtype=torch.uint8, device="cuda")


class Case:
    """What is asked for, and what else it takes to apply a suggestion."""

    def __init__(self):
        self.held = []
        self.size = 0
        self.where = contextlib.nullcontext  # of the request
        self.end = lambda: None  # who else has memory gives it back

    def ask(self):
        with self.where():
            self.held.append(make(self.size))


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def capacity(case):
    case.size = 100 * MIB


@case
def fraction(case):
    torch.cuda.set_per_process_memory_fraction(.5)
    case.held.append(make(20 * MIB))
    case.size = 20 * MIB
    case.end = lambda: torch.cuda.set_per_process_memory_fraction(1.)


@case
def scope_limit(case):
    limit = stratalloc.limit("4 MiB", scope="cache")
    case.where = lambda: stratalloc.scope("cache")
    with stratalloc.scope("cache"):
        case.held.append(make(3 * MIB))
    case.size = 2 * MIB
    case.end = limit.remove


@case
def live(case):
    for name, size in (("small", 10), ("large", 30)):
        with stratalloc.scope(name):
            case.held.append(make(size * MIB))
    case.size = 40 * MIB


@case
def in_pieces(case):
    """What one owner has would be enough, and none of it alone in a handle."""
    half = 3 * MIB // 2
    for _ in range(12):
        for name in ("pieces", "others"):
            with stratalloc.scope(name):
                case.held.append(make(half))
    with stratalloc.scope("large"):
        case.held.append(make(20 * MIB))
    case.size = 20 * MIB


@case
def fragmented(case):
    large, small = [], MIB + 512
    for _ in range(8):
        large.append(make(6 * MIB - small))
        case.held.append(make(small))
    large.clear()
    case.size = 52 * MIB


@case
def private_pools(case):
    pool = [torch.cuda.MemPool()]
    with torch.cuda.use_mem_pool(pool[0]):
        make(40 * MIB)
    case.size = 40 * MIB
    case.end = pool.clear


@case
def pending(case):
    side, kept = torch.cuda.Stream(), [make(40 * MIB)]

    @contextlib.contextmanager
    def capture():
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            kept.pop().record_stream(side)
            yield

    case.where = capture
    case.size = 40 * MIB
    case.end = lambda: setattr(case, "where", contextlib.nullcontext)


def _beside(case, processes):
    os.environ["CUDASIM_NVML_PROCESSES"] = processes
    case.size = 30 * MIB


@case
def other_processes(case):
    SIM.cudasim_take_memory(0, 40 * MIB)
    case.end = lambda: SIM.cudasim_take_memory(0, 0)
    _beside(case, f"self:0 5000000:{40 * MIB}")


@case
def unknown(case):
    other_processes(case)
    _beside(case, "")


@case
def non_torch(case):
    address = ctypes.c_uint64()
    assert SIM.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(
        40 * MIB)) == 0
    case.end = lambda: SIM.cuMemFree_v2(address)
    _beside(case, f"self:{40 * MIB}")


@case
def came_free(case):
    case.held.append(make(60 * MIB))
    case.size = 30 * MIB
    # PyTorch's own observers come first, and may free something.
    torch._C._cuda_attach_out_of_memory_observer(
        lambda *_: case.held.clear())


@case
def tiers_full(case):
    case.held += [torch.nn.Parameter(make(4 * MIB).view(torch.float32))
                  for _ in range(6)]
    case.size = 20 * MIB


@case
def gpu_limit(case):
    case.size = 40 * MIB


class _Layer(torch.nn.Module):
    def forward(self):
        return make(40 * MIB)


@case
def working_set(case):
    parts = [torch.nn.Parameter(torch.ones(5 * MIB, device="cuda"))
             for _ in range(2)]
    stratalloc.evict()
    case.held.append(_Layer()())  # an activation: it cannot leave
    case.ask = lambda: parts[0].data.copy_(parts[1].data)


@case
def pinned(case):
    case.held += [torch.nn.Parameter(make(8 * MIB).view(torch.float32))
                  for _ in range(5)]
    for each in case.held:
        stratalloc.pin(each)
    case.end = lambda: [stratalloc.unpin(each) for each in case.held[:5]]
    case.size = 30 * MIB


HEARD = []
stratalloc.on_oom(HEARD.append)


def apply(case, first):
    """False: the setting is a new process's."""
    action = first.action
    if action in ("raise_limit", "raise_room"):
        return False
    if action == "ask_less":
        case.size = first.to
    elif action == "raise_fraction":
        torch.cuda.set_per_process_memory_fraction(first.to / (64 * MIB))
    elif action == "raise_scope_limit":
        stratalloc.limit(first.to, scope=first.scope)
    elif action == "free":
        case.held[:] = [
            each for each in case.held
            if each.untyped_storage().data_ptr() not in first.blocks]
    else:
        case.end()
    gc.collect()
    torch.cuda.synchronize()
    return True


def used():
    return [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(),
            SIM.cudasim_used(0)]


def run(name):
    HEARD.clear()
    made, moved = Case(), []
    CASES[name](made)
    if name != "came_free":
        moved.append(used())  # an operator has no observers of PyTorch's
        remove = stratalloc.on_oom(lambda _: moved.append(used()))
        torch._C._cuda_attach_out_of_memory_observer(
            lambda *_: moved.append(used()))
    try:
        made.ask()
    except torch.OutOfMemoryError as error:
        message = str(error)
    else:
        raise SystemExit(f"{name}: it was served")
    if name != "came_free":
        remove()
    (report,) = HEARD
    result = {"report": json.loads(json.dumps(report.to_dict())),
              "message": message, "moved": moved[-2:], "applied": None}
    if not report.suggestions or apply(made, report.suggestions[0]):
        try:
            made.ask()
            result["applied"] = "served"
        except torch.OutOfMemoryError as error:
            result["applied"] = str(error)
    made.end()
    made.held.clear()
    os.environ.pop("CUDASIM_NVML_PROCESSES", None)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return result


print(json.dumps({name: run(name) for name in OPTIONS["cases"]}))
