# SPDX-License-Identifier: Apache-2.0
"""HeapModel: where blocks would go on a card of another size.

What the allocator does with tiering off, step by step: allocator/README.md has
the words, and its files the rules that are followed here. Requests are rounded
to 512 bytes; small ones (1 MiB at most) and large ones of each stream and
private pool have pools of their own. A block freed last is taken for its exact
size (fast_path.cc), else the smallest hole that is large enough, at the lowest
address. What has no hole gets memory where the fewest handles are needed, in
segments of 64 MiB or an eighth of the card (block_heap.cc, placement.cc): what
was mapped there before, then handles in which nothing lives, then new ones. Who
is refused gets cached memory given back, then blocks that wait for streams
(ladder.cc).

No recording says how far a stream is behind. Here all that was enqueued has run
whenever the allocator asks; what a free waited for it says by when it completes.
"""

import bisect

from stratalloc.telemetry.analysis.bins_model import MOST_BYTES
from stratalloc.telemetry.analysis.blocks_model import (
    BINNED, FREE, NO_OWNER, UNMAPPED, USED, Blocks, Pool)
from stratalloc.telemetry.analysis.handles_model import Handles

SMALL = 1 << 20  # the largest request of a small pool
_SEGMENT = 64 << 20  # the least address space of one
_SEGMENTS = 8  # an eighth of the card, at least
_PLACES = 64  # that are compared before memory grows


class NoRoomError(Exception):
    """A request needs more handles than there are."""


class HeapModel:
    """`mapped`: bytes of handles now, `most` ever.

    Pools are named (stream, owner); owner (0, 0) is no private pool. `kept`:
    private pools that are in use: their cached memory stays with them.
    """

    def __init__(self, capacity, handle=2 << 20, largest=None):
        """`largest`: of a request, whatever there is room for; None: what all
        of the handles hold."""
        self.handle = handle
        self._largest = (capacity if largest is None else largest
                         ) // handle * handle
        self.most = 0
        self.kept = set()
        self._segment = max(_SEGMENT, capacity // _SEGMENTS)
        self._handles = Handles(capacity // handle)
        self._pools = {}
        self._order = []  # of pools, as the allocator searches them
        self._blocks = Blocks(handle, self._handles.resident)

    @property
    def mapped(self):
        return self._handles.used * self.handle

    # ---- what a program does ------------------------------------------------

    def allocate(self, key, requested, waiting=lambda: False):
        """The Block.

        Args:
          waiting: called where nothing else helps: frees what waits for
            streams, and says whether it did.

        Raises:
          NoRoomError: it does not fit, whatever is given back.
        """
        size = max(512, -(-requested // 512) * 512)
        pool = self._pool(key, size <= SMALL)
        block = pool.bins.take(size) if pool.bins else None
        if block is not None:
            block.state = USED
            return block
        block = self._cached(pool, size) or self._grow(pool, size)
        if block is None:
            self._release(-(-size // self.handle))
            block = self._find(pool, size)
        if block is None and waiting():
            block = self._find(pool, size)
        if block is None:
            self._release(None)
            block = self._find(pool, size)
        if block is None:
            raise NoRoomError
        return self._blocks.hand_out(block, size)

    def free(self, block, at_once=True):
        """`at_once`: no stream was waited for."""
        bins = block.pool.bins
        if not at_once or bins is None or block.size > MOST_BYTES:
            return self._blocks.give_back(block)
        if not bins.put(block):
            self._blocks.empty(block.pool)
            if not bins.put(block):
                return self._blocks.give_back(block)
        block.state = BINNED
        return None

    # ---- searches -----------------------------------------------------------

    def _pool(self, key, small):
        pool = self._pools.get((key, small))
        if pool is None:
            pool = self._pools[key, small] = Pool(key, small)
            # By stream, then small before large, then private pools.
            self._order = sorted(self._pools.values(), key=lambda one: (
                one.key[0], not one.small, one.key[1]))
        return pool

    def _find(self, pool, size):
        return self._cached(pool, size) or self._grow(pool, size)

    def _cached(self, pool, size):
        if pool.bins and pool.bins.count and pool.bins.largest > size:
            self._blocks.empty(pool)
        at = bisect.bisect_left(pool.holes, (size, 0))
        if at == len(pool.holes) and pool.bins and pool.bins.count:
            self._blocks.empty(pool)
            at = bisect.bisect_left(pool.holes, (size, 0))
        if at == len(pool.holes):
            return None
        return self._blocks[pool.holes[at][1]]

    def _grow(self, pool, size):
        """A free block that got memory, or None."""
        if size > self._largest:  # before its places are looked at one by one
            return None
        start = self._run(pool, size)
        if start is None:
            start = self._blocks.add_segment(
                pool, max(size, self._segment))
        segment = self._blocks.at(start).segment
        first = start // self.handle
        last = -(-(start + size) // self.handle)
        self._move_to(first, last)
        came = self._handles.map([place for place in range(first, last)
                                  if place not in self._handles.resident])
        self._blocks.refile(segment, first * self.handle,
                     min(segment.end, last * self.handle))
        if not came:
            return None
        self.most = max(self.most, self.mapped)
        return self._blocks.at(start)

    def _run(self, pool, size):
        """Where free space, with memory or without, needs the fewest new
        handles, of the first places; None: nowhere."""
        best = least = None
        looked_at = 0
        for address in pool.gaps:
            if best is not None:
                looked_at += 1
                if looked_at == _PLACES:
                    break
            first = self._blocks[address]
            if first.previous is not None and first.previous.state == FREE:
                first = first.previous
            missing = self._missing(first, size)
            if missing is not None and (best is None or missing < least):
                best, least = first.address, missing
        return best

    def _missing(self, block, size):
        """Handles that the free space from this block on lacks, or None if it
        ends before."""
        end, missing = block.address + size, 0
        while block is not None and block.state >= FREE:
            if block.state == UNMAPPED:
                missing += min(block.end, end) - block.address
            if block.end >= end:
                return -(-missing // self.handle)
            block = block.next
        return None

    # ---- handles move -------------------------------------------------------

    def _move_to(self, first, last):
        """Handles in which nothing lives are given up for these places: those
        that were mapped there first."""
        for pool in self._order:
            self._blocks.empty(pool)
        handles = self._handles
        moving, missing = {}, 0
        for place in range(first, last):
            if place in handles.resident:
                continue
            memory = handles.kept.get(place)
            at = None if memory is None or memory.free else memory.at
            if (at is None or first <= at < last or at in moving
                    or not self._may_move(at)):
                missing += 1
            else:
                moving[at] = None
        missing -= min(missing, handles.free_count())
        if missing:
            for at in self._find_free(missing, lambda one: not (
                    first <= one < last or one in moving)):
                moving[at] = None
        self._give_up(sorted(moving))

    def _may_move(self, place):
        """Does nothing live there, in a pool whose memory may move?"""
        block = self._blocks.at(place * self.handle)
        return (block.state == FREE and block.end >= (place + 1) * self.handle
                and block.pool.key[1] not in self.kept)

    def _find_free(self, most, accept):
        """Places in which nothing lives, the smallest holes first."""
        found = []
        for pool in self._order:
            if pool.key[1] in self.kept:
                continue
            for size, address in pool.holes:
                for place in range(-(-address // self.handle),
                                   (address + size) // self.handle):
                    if most is not None and len(found) >= most:
                        return found
                    if accept(place):
                        found.append(place)
        return found

    def _release(self, most):
        for pool in self._order:
            self._blocks.empty(pool)
        self._give_up(self._find_free(most, lambda place: True))

    def _give_up(self, places):
        i = 0
        while i < len(places):
            segment = self._blocks.at(places[i] * self.handle).segment
            low = high = places[i]
            keeps = segment.pool.key[1] == NO_OWNER
            while (i < len(places) and places[i] == high
                   and high * self.handle < segment.end):
                self._handles.give_up(places[i], keeps)
                high += 1
                i += 1
            self._blocks.refile(segment, low * self.handle, high * self.handle)

    def check(self):
        """AssertionError unless blocks and handles agree."""
        self._handles.check()
        self._blocks.check(self._order)
