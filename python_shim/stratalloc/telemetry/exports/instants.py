# SPDX-License-Identifier: Apache-2.0
"""instants() and curves(): what every viewer of a trace is shown."""

import typing

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.exports import samples
from stratalloc.telemetry.exports.target import text
from stratalloc.telemetry.model import Kind

# What is told as a moment; of a mark the name is its own.
_NAMES = {Kind.OOM: "out of memory", Kind.MARK: None, Kind.STALL: "stall",
          Kind.LATE: "late prefetch", Kind.DROPPED: "dropped",
          Kind.SEGMENT_ALLOC: "segment_alloc",
          Kind.SEGMENT_FREE: "segment_free", Kind.SEGMENT_MAP: "segment_map",
          Kind.SEGMENT_UNMAP: "segment_unmap"}
_KINDS = [int(kind) for kind in _NAMES]


class Instant(typing.NamedTuple):
    """A moment of a device; `scope` is "" for none."""

    time: int
    kind: int
    name: str
    address: int
    bytes: int
    scope: str
    device: int


def instants(run, device=None):
    """Instant for each such event, of one device or of all."""
    events = run.events
    ours = np.isin(events["kind"], _KINDS)
    if device is not None:
        ours &= events["device"] == device
    for time, kind, address, size, scope, index in zip(*(
            events[name][ours].tolist() for name in (
                "time", "kind", "address", "bytes", "scope", "device"))):
        named = text(run.scopes[scope])
        yield Instant(time, kind, _NAMES[kind] or named, address, size,
                      named if scope else "", index)


def curves(walked):
    """[(group, name, Curve)]: the device's sums, and what of them is whose."""
    found = [("memory", name, getattr(walked, name))
             for name in samples.CURVES]
    return found + [("categories", model.CATEGORIES[category], curve)
                    for category, curve in samples.by_category(walked).items()]
