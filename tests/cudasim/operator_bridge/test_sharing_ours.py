# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes under the product's allocator, which evicts: what
is shared stays."""

from tests.cudasim.operator_bridge import simulated

simulated.load(
    SHARING_ALLOCATORS="stratalloc,stratalloc",
    memory="64MiB",
    children=True,
    SHARING_METHODS="forkserver",
    SIMULATED_ALLOCATOR="stratalloc",
    STRATALLOC_CONF="host_budget:32MiB,disk_budget:0",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.cudasim.operator_bridge.sharing_cases import *
