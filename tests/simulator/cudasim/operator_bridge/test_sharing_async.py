# SPDX-License-Identifier: Apache-2.0
"""The same where every missing synchronisation shows."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    memory="64MiB",
    mode="async",
    seed=3,
    children=True,
    SHARING_METHODS="spawn",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
