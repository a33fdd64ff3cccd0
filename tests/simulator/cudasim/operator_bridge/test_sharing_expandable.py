# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes, memory from cuMemCreate: PyTorch exports file
descriptors and the other process takes them with pidfd_getfd."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    memory="64MiB",
    children=True,
    SHARING_METHODS="forkserver",
    PYTORCH_ALLOC_CONF="expandable_segments:True",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
