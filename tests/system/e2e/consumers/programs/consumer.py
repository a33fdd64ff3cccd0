# SPDX-License-Identifier: Apache-2.0
"""Runs consumers of PyTorch's allocator, under PyTorch's own or ours.

    consumer.py native|ours MEMORY FILE.FUNCTION...

Runs the functions one after the other on a device of MEMORY and prints one JSON
object: for each what it returned and the counts of statistics at its end. They
know nothing of the allocator. What must be equal under both goes into the
result; what may differ (addresses, reserved bytes) must not.
"""

import ctypes
import gc
import importlib
import json
import sys

from stratalloc import simulate

way, memory, *names = sys.argv[1:]
simulate.load(memory)

import torch

import stratalloc

# Sums split over threads differ in the last bit between two runs.
torch.set_num_threads(1)
if way == "ours":
    assert stratalloc.enable()

# The functions import what they need of this file by this name.
sys.modules["consumer"] = sys.modules["__main__"]

driver = ctypes.CDLL("libcuda.so.1")
driver.cudasim_violation_count.restype = ctypes.c_long
driver.cudasim_launches_without_twin.restype = ctypes.c_long

# As in tests/system/differential: the rest of memory_stats() may differ.
COMPARED = ("allocation.", "requested_bytes.", "active.", "num_ooms")


def counts(stats=None):
    """The statistics that are the same under both allocators."""
    stats = torch.cuda.memory_stats() if stats is None else stats
    return {key: value for key, value in stats.items()
            if key.startswith(COMPARED)}


def fresh():
    """No memory but what lives, statistics from zero."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def digest(tensor):
    """Every bit of a tensor of finite numbers, in a short text."""
    data = tensor.detach().cpu().contiguous()
    assert data.isfinite().all().item()
    return f"{tuple(data.shape)} {hash(data.numpy().tobytes()):x}"


def main():
    saw = {}
    for name in names:
        module, function = name.split(".")
        function = getattr(importlib.import_module(module), function)
        fresh()
        result = function()
        torch.cuda.synchronize()
        saw[name] = {"result": result, "counts": counts()}
    saw["enabled"] = stratalloc.is_enabled()
    saw["violations"] = driver.cudasim_violation_count()
    saw["without_twin"] = driver.cudasim_launches_without_twin()
    print(json.dumps(saw))


if __name__ == "__main__":
    main()
