# SPDX-License-Identifier: Apache-2.0
"""fill(): how large native's blocks were, which its history does not say.

Native takes a hole from its beginning and gives the rest back as a hole, except
in large segments of cudaMalloc, where a rest of 1 MiB or less stays with the
block. The hole's end follows from what lived behind it then. Blocks that are
there at the end are told by the snapshot; nothing here touches them.
"""

import bisect

import numpy as np

from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.ranges import Ranges
from stratalloc.telemetry.replay import Replay

_REST = 1 << 20  # the largest rest that is not split off
_SMALL_SEGMENT = 2 << 20


def fill(run):
    """Sets `aux` of events that allocated blocks which are larger than their
    request rounded, and are gone at the end."""
    for device in run.devices:
        if _has_large(run, device):
            _fill(run, device.index)


def _has_large(run, device):
    events = run.events
    return any(not one.expandable and not one.small
               for one in device.end or ()) or bool((
                   (events["kind"] == Kind.SEGMENT_ALLOC)
                   & (events["bytes"] > _SMALL_SEGMENT)
                   & (events["device"] == device.index)).any())


def _fill(run, index):
    replay = Replay(run, index)
    rows, last = replay.rows, len(run.events)
    segments = Ranges(replay.start)
    at = np.flatnonzero((run.events["kind"] >= Kind.SEGMENT_ALLOC)
                        & (run.events["kind"] <= Kind.SEGMENT_UNMAP)
                        & (run.events["device"] == index))
    live = sorted(rows["address"][rows["begin"] < 0].tolist())
    # (event, what: an end, a segment's, a beginning; index of the row)
    ends = np.flatnonzero(rows["done"] < last)
    begins = np.flatnonzero(rows["begin"] >= 0)
    moments = np.concatenate([rows["done"][ends], at, rows["begin"][begins]])
    what = np.repeat([0, 1, 2], [len(ends), len(at), len(begins)])
    which = np.concatenate([ends, at, begins])
    order = np.lexsort((what, moments))
    sizes, addresses = rows["size"].tolist(), rows["address"].tolist()
    gone = (rows["done"] < last).tolist()
    for kind, i, event in zip(what[order].tolist(), which[order].tolist(),
                              moments[order].tolist()):
        if kind == 1:
            segments.apply(run.events[i])
            continue
        address = addresses[i]
        place = bisect.bisect_left(live, address)
        if kind == 0:
            if place < len(live) and live[place] == address:
                del live[place]
            continue
        segment = segments.at(address)
        if (gone[i] and segment and not segment.expandable
                and segment.size > _SMALL_SEGMENT):
            end = min(live[place:place + 1] + [segment.end])
            if sizes[i] < end - address <= sizes[i] + _REST:
                run.events["aux"][event] = end - address
        live.insert(place, address)
