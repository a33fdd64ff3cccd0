# SPDX-License-Identifier: Apache-2.0
"""Snapshots of 100 000 blocks: in C++, and through torch's Python function.

    python -m stratalloc.bench.snapshots --device sim|cuda [--native] ROUNDS

answers one JSON object: nanoseconds of each round. The Python function asks
whichever allocator is torch's, so native's has a process of its own; in C++
both are asked in one.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time

from stratalloc import _autoload
from stratalloc._terminal import command as _command
from stratalloc.bench import library
from stratalloc.demo.phases import package_environment

BLOCKS = 100000
# Goals: nanoseconds in C++, native's time in Python.
_CORE_GOAL = 50e6
_PYTHON_GOAL = 1.0
_SIMULATED_MEMORY = 1 << 30


def lines(entry, device, rounds):
    """Two lines of the table; `entry` makes one."""
    ours = _ask(device, rounds)
    native = _ask(device, rounds, "--native")
    count = f"{BLOCKS // 1000} 000 blocks"
    return [
        entry(f"snapshot of {count}, C++", ours["core"], ours["native"],
              "native", goal=_CORE_GOAL),
        entry(f"snapshot of {count}, Python", ours["python"],
              native["python"], "native", ratio_goal=_PYTHON_GOAL),
    ]


def _ask(device, rounds, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "stratalloc.bench.snapshots", "--device",
         device, *arguments, str(rounds)],
        stdout=subprocess.PIPE, text=True, check=False,
        env=package_environment())
    if done.returncode != 0:
        raise _command.CannotRunError(
            f"stratalloc: the benchmark of snapshots ended with code "
            f"{done.returncode}; its reason is above")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("sim", "cuda"), required=True)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("rounds", type=int)
    args = parser.parse_args()
    _autoload.leave_to_caller()
    if args.device == "sim":
        from stratalloc import simulate

        simulate.load(_SIMULATED_MEMORY)
    import torch

    import stratalloc

    if not args.native:
        library.load(torch)
        stratalloc.enable(host_budget=64 << 20, disk_budget=0)
    torch.cuda.init()
    result = {} if args.native else _core(torch, args.rounds)
    result["python"] = _python(torch, args.rounds)
    print(json.dumps(result))


def _core(torch, rounds):
    from stratalloc._native import bridge as _bridge

    _bridge.call("native_init", torch.cuda.device_count())
    ours, native = (ctypes.c_double * rounds)(), (ctypes.c_double * rounds)()
    library.call("snapshot_ns", BLOCKS, rounds, ours, native)
    return {"core": list(ours), "native": list(native)}


def _python(torch, rounds):
    held = [torch.empty(1, device="cuda") for _ in range(BLOCKS)]
    torch.cuda.memory._snapshot()  # the first one fills torch's caches
    times = []
    gc.disable()  # a collection looks at every dictionary there is
    for _ in range(rounds):
        start = time.perf_counter_ns()
        snapshot = torch.cuda.memory._snapshot()
        times.append(time.perf_counter_ns() - start)
        blocks = sum(len(each["blocks"]) for each in snapshot["segments"])
        assert blocks >= len(held)
        del snapshot
    return times


if __name__ == "__main__":
    main()
