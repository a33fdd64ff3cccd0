# SPDX-License-Identifier: Apache-2.0
"""Tensors of a traced program, and identities of what was recorded.

Import it after the simulated device.
"""

import numpy as np
import torch

from stratalloc.telemetry import identities
from stratalloc.telemetry.replay import Replay

MIB = 1 << 20


def tensor(size=MIB):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def holds(run):
    """Every identity, and the end is what the allocator says."""
    assert identities.check(run) == []
    assert run.dropped == 0
    for device in run.devices:
        replay = Replay(run, device.index)
        for name in ("allocated", "reserved"):
            assert getattr(replay, name).last() == \
                device.stats[f"{name}_bytes.all.current"], name


def of_kind(run, *kinds):
    return run.events[np.isin(run.events["kind"], kinds)]
