# SPDX-License-Identifier: Apache-2.0
"""What moved to the tiers below a device and is there."""

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind


def tier_bytes(run, index, moment):
    """{"host": bytes, "disk": bytes} after an event, of tiers that something
    moved to or from. What was there before the recording is not in it."""
    events = run.events[:moment + 1]
    moves = events[(events["kind"] == Kind.MOVE) & (events["device"] == index)]
    source, to = np.divmod(moves["category"], len(model.TIERS))
    size = moves["bytes"].astype("<i8")
    dropped = events[(events["kind"] == Kind.DROPPED)
                     & (events["device"] == index)]
    return {name: max(0, int(
        size[to == tier].sum() - size[source == tier].sum()
        - dropped["bytes"][dropped["category"] == tier].sum(dtype="i8")))
            for tier, name in enumerate(model.TIERS) if tier
            and ((to == tier) | (source == tier)).any()}
