# SPDX-License-Identifier: Apache-2.0
"""MemoryEvent, LayerMemoryStats, and Events: many of the former in columns.

An event is a row of 40 bytes; a MemoryEvent is made of it when somebody asks
for it. Nothing here is written to after it is made: any thread may read.
"""

import collections.abc
import dataclasses
import operator

import numpy as np

TYPES = ("alloc", "free", "snapshot", "layer_enter", "layer_exit")
ALLOC, FREE, SNAPSHOT, ENTER, EXIT = range(len(TYPES))

ROW = np.dtype([
    ("time", "<i8"),  # ns since the trace began
    ("size", "<i8"), ("allocated", "<i8"), ("reserved", "<i8"),
    ("layer", "<u4"),  # index of the names; 0: none
    ("type", "u1"), ("device", "u1"), ("unused", "<u2")])


@dataclasses.dataclass
class MemoryEvent:
    """Something that happened while a model was traced.

    timestamp: seconds since the trace began. event_type: "alloc", "free",
    "snapshot" (what is allocated or reserved changed otherwise, or a trace
    begins or ends), "layer_enter" or "layer_exit", of a backward, too.
    size_bytes: of the block, 0 where there is none. layer_name: as in
    model.named_modules(), "" for the model itself, None for no layer of it.
    The rest is of the traced devices together, right after the event; bytes,
    and (reserved - allocated) / reserved, 0 where nothing is reserved.
    """

    timestamp: float
    event_type: str
    size_bytes: int
    layer_name: str | None
    allocated_bytes: int
    reserved_bytes: int
    fragmentation_ratio: float


@dataclasses.dataclass
class LayerMemoryStats:
    """A layer's calls and their backwards, all together.

    peak_allocated, peak_reserved: the most that the traced devices had while
    one of its calls or backwards was under way, bytes. total_allocations,
    total_deallocations: blocks, of the layer itself without those inside of
    it. avg_fragmentation: over the events in that time. duration_ms: of the
    layer with those inside of it.
    """

    layer_name: str
    peak_allocated: int
    peak_reserved: int
    total_allocations: int
    total_deallocations: int
    avg_fragmentation: float
    duration_ms: float


class Events(collections.abc.Sequence):
    """MemoryEvents in the order in which they happened, the newest last.

    Read like the deque that the original has: indices, slices (lists), len(),
    iteration, ==. `rows`: the columns (ROW), for numpy; not to be written to.
    """

    __slots__ = ("rows", "names", "maxlen", "_fragmentation")

    def __init__(self, rows, names, maxlen, fragmentation=True):
        rows.flags.writeable = False
        self.rows, self.names, self.maxlen = rows, names, maxlen
        self._fragmentation = fragmentation

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return list(self._made(self.rows[index]))
        return next(self._made(self.rows[[operator.index(index)]]))

    def __iter__(self):
        for first in range(0, len(self.rows), 4096):  # few at a time
            yield from self._made(self.rows[first:first + 4096])

    def __reversed__(self):
        return self._made(self.rows[::-1])

    def _made(self, rows):
        for time, size, allocated, reserved, layer, kind in zip(*(
                rows[name].tolist() for name in (
                    "time", "size", "allocated", "reserved", "layer",
                    "type"))):
            yield MemoryEvent(
                time / 1e9, TYPES[kind], size,
                self.names[layer] if layer else None, allocated, reserved,
                fragmentation(allocated, reserved)
                if self._fragmentation else 0.0)

    def __eq__(self, other):
        if not isinstance(other, collections.abc.Iterable):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None

    def __repr__(self):
        return f"<Events: {len(self)} of at most {self.maxlen}>"


def fragmentation(allocated, reserved):
    return (reserved - allocated) / reserved if reserved > 0 else 0.0


def fragmentations(rows):
    """fragmentation() of each of many."""
    reserved = rows["reserved"]
    return np.where(reserved > 0, (reserved - rows["allocated"])
                    / np.maximum(reserved, 1), 0.0)
