# SPDX-License-Identifier: Apache-2.0
"""The product's allocator here, PyTorch's own in the other process: one format."""

from tests.cudasim.operator_bridge import simulated

simulated.load(
    memory="64MiB",
    children=True,
    SHARING_METHODS="spawn",
    TEST_ALLOCATOR="ours",
    TEST_CHILD_ALLOCATOR="native",
    STRATALLOC_CONF="tiering:off",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.cudasim.operator_bridge.sharing_cases import *
