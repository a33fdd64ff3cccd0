# SPDX-License-Identifier: Apache-2.0
"""Ranges: which addresses of a device were reserved, at any event.

Segments that are mapped piece by piece grow together where they touch and
belong to one pool; those of cudaMalloc stay what they are.
"""

import bisect
import dataclasses

from stratalloc.telemetry.model import Kind


@dataclasses.dataclass
class Range:
    address: int
    size: int
    pool: int
    expandable: bool
    small: bool = False

    @property
    def end(self):
        return self.address + self.size


class Ranges:
    """Ranges in order of address; what is taken away need not have been there,
    and `faults` counts what was not, or what was added twice."""

    def __init__(self, segments=()):
        self._starts, self._ranges = [], []
        self.faults = 0
        for one in segments:
            self.add(one.address, one.size, one.pool, one.expandable, one.small)

    def __iter__(self):
        return iter(self._ranges)

    def __len__(self):
        return len(self._ranges)

    def total(self):
        return sum(one.size for one in self._ranges)

    def at(self, address):
        """The Range that an address lies in, or None."""
        place = bisect.bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ranges[place].end:
            return self._ranges[place]
        return None

    def add(self, address, size, pool, expandable, small=False):
        if size <= 0:
            self.faults += 1
            return
        at = bisect.bisect_right(self._starts, address)
        new = Range(address, size, pool, expandable, small)
        before = self._ranges[at - 1] if at else None
        after = self._ranges[at] if at < len(self._ranges) else None
        if (before and before.end > address) or (after and after.address
                                                 < new.end):
            self.faults += 1
            self.take(address, size, quiet=True)
            at = bisect.bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._ranges.insert(at, new)
        if expandable:
            self._join(at)
            self._join(at - 1)

    def _join(self, at):
        """The range at `at` and the next one, if they are one."""
        if not 0 <= at < len(self._ranges) - 1:
            return
        one, two = self._ranges[at:at + 2]
        if (one.expandable and two.expandable and one.end == two.address
                and one.pool == two.pool):
            one.size += two.size
            del self._ranges[at + 1], self._starts[at + 1]

    def take(self, address, size, quiet=False):
        """What of [address, address + size) is there goes."""
        end, found = address + size, 0
        at = max(bisect.bisect_right(self._starts, address) - 1, 0)
        while at < len(self._ranges) and self._ranges[at].address < end:
            one = self._ranges[at]
            low, high = max(one.address, address), min(one.end, end)
            if low >= high:
                at += 1
                continue
            found += high - low
            rest = [Range(a, b - a, one.pool, one.expandable, one.small)
                    for a, b in ((one.address, low), (high, one.end)) if a < b]
            self._ranges[at:at + 1] = rest
            self._starts[at:at + 1] = [part.address for part in rest]
            at += len(rest)
        if found != size and not quiet:
            self.faults += 1

    def apply(self, event, backwards=False):
        """A segment event; backwards: undoes it."""
        kind = event["kind"]
        adds = kind in (Kind.SEGMENT_ALLOC, Kind.SEGMENT_MAP)
        if adds == backwards:
            self.take(int(event["address"]), int(event["bytes"]))
        else:
            self.add(int(event["address"]), int(event["bytes"]),
                     int(event["pool"]),
                     kind in (Kind.SEGMENT_MAP, Kind.SEGMENT_UNMAP))
