# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own allocator on the device of the package, as a user loads it."""

import os
import textwrap

from bazel import programs

# Prints the allocator, the live mappings and what a tensor reads.
_PROGRAM = """
from stratalloc import simulate
simulate.load("256MiB")
import torch
kept = [torch.full((3 << 20,), float(i), device="cuda") for i in range(5)]
print(torch.cuda.memory.get_allocator_backend(),
      simulate.driver().cudasim_live_mappings() >= 3,
      sum(x[0].item() for x in kept), simulate.violations())
"""
_CHILD = """
import subprocess, sys
from stratalloc import simulate
simulate.load("64MiB")
simulate.for_children()
code = 'import torch; print(torch.zeros(3 << 20, device="cuda").sum().item())'
print(subprocess.run([sys.executable, "-c", code], check=True,
                     capture_output=True, text=True).stdout, end="")
"""


def _run(script):
    environment = {**os.environ,
                   "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    done = programs.run("-c", textwrap.dedent(script), env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# From 2.13 on it asks NVML before it maps a segment.
def test_expandable_segments_map_memory():
    assert _run(_PROGRAM) == "native True 10.0 []\n"


def test_child_process_maps_expandable_segments():
    assert _run(_CHILD) == "0.0\n"
