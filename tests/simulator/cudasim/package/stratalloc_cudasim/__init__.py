# SPDX-License-Identifier: Apache-2.0
"""A simulated CUDA device in host memory, for machines without a GPU.

    from stratalloc import simulate
    simulate.load("64MiB")      # before torch is imported
    import torch                # sees cuda:0 with 64 MiB

The package carries libcuda.so.1, libcudart.so.13 and libnvidia-ml.so.1 that
implement CUDA on host memory, and an operator bridge that computes each CUDA operator with its
CPU kernel on the same bytes, so numbers are real. Never loaded unless asked
for; whoever loads it says so in its output (`label()`).

stratalloc.simulate is the door to it and says what it wants of this module.
"""

from stratalloc_cudasim.children import for_children
from stratalloc_cudasim.counts import calls
from stratalloc_cudasim.counts import counters
from stratalloc_cudasim.counts import last_line
from stratalloc_cudasim.counts import violations
from stratalloc_cudasim.counts import virtual_time
from stratalloc_cudasim.device import after_enable
from stratalloc_cudasim.device import before_enable
from stratalloc_cudasim.device import card_memory
from stratalloc_cudasim.device import check_model
from stratalloc_cudasim.device import directory
from stratalloc_cudasim.device import driver
from stratalloc_cudasim.device import is_phantom
from stratalloc_cudasim.device import label
from stratalloc_cudasim.device import load
from stratalloc_cudasim.device import missing
from stratalloc_cudasim.device import numbers_off
