# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes under the product's allocator, which evicts: what
is shared stays."""

from tests.cudasim.operator_bridge import simulated

simulated.load(
    memory="64MiB",
    children=True,
    SHARING_METHODS="forkserver",
    TEST_ALLOCATOR="ours",
    STRATALLOC_CONF="host_budget:32MiB,disk_budget:0",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.cudasim.operator_bridge.sharing_cases import *
