# SPDX-License-Identifier: Apache-2.0
"""Runs programs under one allocator, on the simulated devices or a GPU (real.py).

Reads one program per line ({"steps", "case", "look"}: tensors.py), answers one
line: a list with what each step showed, or {"dirty": why} if a program left
something behind. Between two programs nothing is allocated, cached, pooled or
counted; that is checked, not hoped for.
"""

import ctypes
import gc
import json
import os
import sys
import threading

from tests.simulator.cudasim.operator_bridge import simulated
from tests.system.differential import compare, program, real

if real.wanted():
    CONTROL = real.load(simulated.allocator())
    CUDA = CONTROL.cuda
else:
    CONTROL = simulated.load(
        memory=program.DEVICE,
        devices=int(os.environ.get("DEVICES", "1")),
        mode=os.environ.get("MODE", "eager"),
    )
    CUDA = CONTROL.cuda
    CUDA.cudasim_take_memory.argtypes = [ctypes.c_int, ctypes.c_uint64]
    CUDA.cudasim_take_memory.restype = ctypes.c_uint64
    CUDA.cudasim_run_stream.argtypes = [ctypes.c_void_p, ctypes.c_long]
    CUDA.cudasim_run_stream.restype = ctypes.c_long
    CUDA.cudasim_calls.restype = ctypes.c_long

# pylint: disable=wrong-import-position
import torch

from tests.system.differential.pools import Pools
from tests.system.differential.shown import refused, statistics, text_of
from tests.system.differential.turns import Turns


class Run(Pools):
    """One program: its steps, and the threads that they run on."""

    def __init__(self, streams, turns, case=compare.EAGER, look=None):
        super().__init__(streams, CONTROL, simulated.allocator(), case, look)
        self.turns = turns
        self.entries = {}  # thread: [(pool, context)], innermost last

    def thread(self, steps):
        shown = []
        other = threading.Thread(
            target=lambda: shown.extend(self.step(step) for step in steps)
        )
        other.start()
        other.join()
        return shown

    def threads(self, turns):
        shown = [self.turns.call(thread, self.turn, thread, step)
                 for thread, step in turns]  # fmt: skip
        for thread, entered in self.entries.items():
            while entered:
                self.turns.call(thread, self.turn, thread, ["leave"])
        return shown

    def turn(self, thread, step):
        self.own.stream = thread + 1
        self.own.entered = self.entries.setdefault(thread, [])
        return self.step(step)

    def enter(self, pool):
        context = self.route(pool)
        if context is None:
            return None
        context.__enter__()
        self.entered(pool)
        self.own.entered.append((pool, context))
        return self.pools[pool].use_count()

    def leave(self):
        if not self.own.entered:
            return None
        pool, context = self.own.entered.pop()
        context.__exit__(None, None, None)
        self.left(pool)
        return self.in_use(pool)

    def step(self, step):
        """[what was returned or raised, what is counted]."""
        real.settle()
        name, *arguments = step
        method = {"raw": self.raw_alloc}.get(name) or getattr(self, name)
        self.run_streams()
        wanted, failed = None, False
        try:
            shown = method(*arguments)
        except (RuntimeError, AssertionError) as error:
            shown, wanted, failed = text_of(error), refused(error), True
        if failed:  # in the middle of what holds itself
            gc.collect(0)
        return [shown, {**self.counted(), "refused": wanted}]


def clean():
    """Leaves nothing; returns what was left all the same, or None."""
    gc.collect()
    for _ in range(2):  # events that waited are looked at in between
        for i in range(torch.cuda.device_count()):
            torch.cuda.synchronize(i)
            torch.empty(1, device=f"cuda:{i}")
        torch.cuda.empty_cache()
    left = []
    for i in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(i)
        torch.cuda.reset_accumulated_memory_stats(i)
        if torch.cuda.get_per_process_memory_fraction(i) != 1.0:
            left.append("a fraction")
    left += [
        f"{key} = {value}"
        for device in statistics()
        for part in device
        for key, value in part.items()
        if value != 0
    ]
    if torch.cuda.memory_snapshot():
        left.append("a segment")
    left += CONTROL.violations()
    return ", ".join(left) or None


def execute(made, steps, case, look):
    run = Run(*made, case, look)
    log = [run.step(step) for step in steps]
    log.append([run.close(), run.counted()])
    del run
    left = clean()
    return {"log": log, **({"dirty": left} if left else {})}


def prepare():
    """Streams and threads for every program of this process."""
    # torch._C._cuda_memorySnapshot (2.11) gives back references to True and
    # False that it did not take: two False a call. Sooner or later Python
    # frees one of them, and the process dies. Nobody counts so far down.
    for value in (True, False):
        ctypes.c_ssize_t.from_address(id(value)).value += 1 << 40
    torch.cuda.init()
    streams = [torch.cuda.default_stream()]
    streams += [torch.cuda.Stream() for _ in range(program.STREAMS - 1)]
    if torch.cuda.device_count() > 1:
        others = program.ALL_STREAMS - program.STREAMS
        streams += [torch.cuda.Stream(device=1) for _ in range(others)]
    for i in range(torch.cuda.device_count()):
        torch.ones(1, device=f"cuda:{i}").add_(1).item()
    CUDA.cudasim_hold_streams(1)  # work is done when a program says so
    return streams, Turns(streams[1 : 1 + program.THREADS])


def main():
    # The protocol has the pipe for itself; everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made = prepare()
    left = clean()
    gc.freeze()  # a collection looks at what programs make, not at torch
    gc.disable()  # and happens where a program says so
    print(json.dumps({"ready": simulated.allocator(), "dirty": left}),
          file=answers, flush=True)  # fmt: skip
    for line in sys.stdin:
        answer = execute(made, **json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
