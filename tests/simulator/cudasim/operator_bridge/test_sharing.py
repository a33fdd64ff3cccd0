# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes, memory from cudaMalloc (CUDA IPC handles)."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(memory="64MiB", children=True)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
