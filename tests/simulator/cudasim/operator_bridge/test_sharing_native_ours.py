# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own allocator here with descriptors (expandable segments), the
product's in the other process."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    SHARING_ALLOCATORS="native,stratalloc",
    memory="64MiB",
    children=True,
    SHARING_METHODS="spawn",
    SIMULATED_ALLOCATOR="native",
    SIMULATED_CHILD_ALLOCATOR="stratalloc",
    STRATALLOC_CONF="tiering:off",
    PYTORCH_ALLOC_CONF="expandable_segments:True",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
