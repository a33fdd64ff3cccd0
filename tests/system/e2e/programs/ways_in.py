# SPDX-License-Identifier: Apache-2.0
"""Ways in: the memory functions of torch, unpatched, under one allocator.

    ways_in.py enable|change_current_allocator|literal|environment|run|native
        OUT

Writes what torch reported after each step as JSON; the test compares it with
torch's own allocator, step by step.
"""

import json
import os
import sys

way, out = sys.argv[1:]
if way != "run" and os.environ["STRATALLOC_TEST_DEVICE"] == "sim":
    from stratalloc import simulate

    simulate.load("64MiB")

import torch

import stratalloc

if way == "enable":
    assert stratalloc.enable()
elif way == "change_current_allocator":
    torch.cuda.memory.change_current_allocator(stratalloc.allocator())
elif way == "literal":
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator(
            stratalloc.library(), "stratalloc_malloc", "stratalloc_free"))

steps = []


def note(name, **more):
    stats = torch.cuda.memory_stats()
    steps.append({"step": name, "stats": stats, **more,
                  "allocated": torch.cuda.memory_allocated(),
                  "reserved": torch.cuda.memory_reserved(),
                  "max_allocated": torch.cuda.max_memory_allocated(),
                  "max_reserved": torch.cuda.max_memory_reserved()})


device = torch.device("cuda", 0)
note("start")
small = [torch.empty(size, dtype=torch.uint8, device=device)
         for size in (1, 511, 512, 513, 100_000)]
note("small blocks")
large = torch.zeros(5 << 20, dtype=torch.uint8, device=device)
huge = torch.ones(8 << 20, dtype=torch.float32, device=device)
note("large blocks", accelerator=torch.accelerator.memory_allocated())
assert huge.sum().item() == 8 << 20
del huge
note("after a large free")
torch.cuda.reset_peak_memory_stats()
note("after reset_peak_memory_stats")
before = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
note("after empty_cache")
assert torch.cuda.memory_reserved() < before
torch.cuda.reset_accumulated_memory_stats()
note("after reset_accumulated_memory_stats")
summary = torch.cuda.memory_summary()
assert "Allocated memory" in summary and "GPU reserved memory" in summary

# A fraction below what is asked for refuses with torch's own exception.
fraction = (16 << 20) / torch.cuda.mem_get_info()[1]
torch.cuda.set_per_process_memory_fraction(fraction)
assert torch.cuda.get_per_process_memory_fraction() == fraction
try:
    torch.empty(40 << 20, dtype=torch.uint8, device=device)
except torch.OutOfMemoryError as error:
    refusal = str(error)
else:
    raise SystemExit("16 MiB held 40 MiB")
torch.cuda.set_per_process_memory_fraction(1.0)
if way != "native":
    # The ladder evicted what it could before it gave up.
    stratalloc.restore()
note("after an out of memory", refusal=refusal)
del small, large
note("end")

ours = way != "native"
assert stratalloc.is_enabled() == ours, (way, stratalloc.is_enabled())
with open(out, "w", encoding="utf-8") as file:
    json.dump({"steps": steps,
               "backend": torch.cuda.memory.get_allocator_backend(),
               "counters": __import__("stratalloc.simulate", fromlist=["x"])
               .counters(),
               "report": stratalloc.report() if ours else None}, file)
