# SPDX-License-Identifier: Apache-2.0
"""The product's allocator here, PyTorch's own in the other process: one format."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    SHARING_ALLOCATORS="stratalloc,native",
    memory="64MiB",
    children=True,
    SHARING_METHODS="spawn",
    SIMULATED_ALLOCATOR="stratalloc",
    SIMULATED_CHILD_ALLOCATOR="native",
    STRATALLOC_CONF="tiering:off",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
