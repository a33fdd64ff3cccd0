# SPDX-License-Identifier: Apache-2.0
"""TiersModel: what would leave a card that is too small, and come back.

An estimate. Blocks are counted, not placed, on the part of the card that holes
leave (`filled`); that a handle leaves whole, with what else lies in it, is not in
it. Transient blocks stay; any other leaves when room is wanted and is back before
it is used.

    tiering  whoever is predicted to be used farthest from now leaves, as
             tiering/policy/victims.h predicts it from the last four intervals
    oracle   whoever really is: no policy moves less
"""

import bisect
import heapq

from stratalloc.telemetry.analysis.uses_model import ALLOC, FREE, WRITE

POLICIES = ("tiering", "oracle")
_BURST = 16  # uses closer together are one
_NEVER = 1 << 62
_HEADROOM = 64  # of the card, once it has refused
_MOST_HEADROOM = 512 << 20


class TiersModel:
    """Attributes:
      evicted, restored: bytes. clean: evicted bytes that needed no copy.
      moves: blocks that left or came back.
      most: bytes on the device at most.
      refused: (event, bytes, bytes that stay) of the first request that would
        not be served, or None.
    """

    def __init__(self, capacity, policy, filled=1., handle=2 << 20):
        self.evicted = self.restored = self.clean = self.moves = self.most = 0
        self.refused = None
        whole = capacity // handle * handle
        left = min(capacity // _HEADROOM, _MOST_HEADROOM) // handle * handle
        self._all = self._capacity = int(whole * filled)
        self._limit = int((whole - left) * filled)
        self._oracle = policy == "oracle"
        self._here = self._stays = 0
        self._blocks = {}  # index -> _Block of what may leave
        self._order = _Order(self._blocks)
        self._clock = 0
        self._next = {}  # oracle: index -> its uses

    def go(self, uses):
        """The whole run, or up to what is refused."""
        if self._oracle:
            for at, (_, index, _) in enumerate(uses.steps):
                self._next.setdefault(index, []).append(at)
        before = None
        running = []  # what is used at this event stays
        for at, (what, index, event) in enumerate(uses.steps):
            one = uses.blocks[index]
            if self._oracle:
                self._clock = at
            elif what == ALLOC:
                self._clock += 1
            if what == FREE:
                self._free(index, one)
                continue
            if event != before or what == WRITE:
                before, running = event, []
            running.append(index)
            if not self._use(index, one, what, running):
                self.refused = event, one.size, self._stays
                return
            self.most = max(self.most, self._here)

    def _use(self, index, one, what, running):
        if what == ALLOC:
            if not self._room(one.size, running):
                return False
            self._here += one.size
            if one.leaves:
                block = self._blocks[index] = _Block(one.size, self._clock)
                self._note(index, block)
            else:
                self._stays += one.size
            return True
        block = self._blocks[index]
        if block.away:
            if not self._room(one.size, running):
                return False
            block.away = False
            self._here += one.size
            self.restored += one.size
            self.moves += 1
        block.used(self._clock)
        self._note(index, block)
        block.dirty |= what == WRITE
        return True

    def _free(self, index, one):
        block = self._blocks.pop(index, None)
        if block is None:
            self._stays -= one.size
        if block is None or not block.away:
            self._here -= one.size

    def _room(self, size, running):
        """Whether there is, with whatever has to leave for it."""
        wanted = self._here + size - self._capacity
        if wanted <= 0:
            return True
        # From the first refusal on some of the card is left to others.
        self._capacity = self._limit
        wanted = self._here + size - self._capacity
        for index in self._order.coldest_first(self._clock, set(running)):
            block = self._blocks[index]
            block.away = True
            wanted -= block.size
            self._here -= block.size
            self.evicted += block.size
            self.clean += 0 if block.dirty else block.size
            block.dirty = False
            self.moves += 1
            if wanted <= 0:
                break
        return self._here + size <= self._all

    def _note(self, index, block):
        """A use: when is the next one, as far as anybody knows?"""
        if self._oracle:
            later = self._next[index]
            at = bisect.bisect_right(later, self._clock)
            block.due = later[at] if at < len(later) else _NEVER
        else:
            period = block.period()
            block.due = block.last + period if period else None
        self._order.put(index, block)


class _Order:
    """Blocks that are on the device, to be had coldest first. An entry counts
    if it has the block's last number: what was used since has another."""

    def __init__(self, blocks):
        self._blocks = blocks
        self._entries = 0
        # By the farthest next use, the longest missed one, the oldest use.
        self._far, self._missed, self._old = self._heaps = [], [], []

    def put(self, index, block):
        self._entries += 1
        block.entry = self._entries
        entry = block.entry, index
        if block.due is None:
            heapq.heappush(self._old, (block.last, *entry))
        else:
            heapq.heappush(self._far, (-block.due, *entry))
            heapq.heappush(self._missed, (block.due, *entry))
        for heap in self._heaps:
            if len(heap) > 4 * len(self._blocks) + 1024:
                heap[:] = [one for one in heap if self._counts(one)]
                heapq.heapify(heap)

    def coldest_first(self, now, keep):
        """Indices; each is taken to have left. What is to be kept is not
        among them."""
        kept = []
        try:
            while True:
                tops = [(abs(now - heap[0][0]) if heap is not self._far
                         else -heap[0][0] - now, number)
                        for number, heap in enumerate(self._heaps)
                        if self._settle(heap)]
                if not tops:
                    return
                _, number = max(tops, key=lambda top: (top[0], -top[1]))
                _, _, index = self._heaps[number][0]
                if index in keep:
                    kept.append(index)
                    self._blocks[index].entry = None  # passed over
                else:
                    yield index
        finally:
            for index in kept:
                self.put(index, self._blocks[index])

    def _settle(self, heap):
        """Drops what counts no longer from the top; whether any is left."""
        while heap and not self._counts(heap[0]):
            heapq.heappop(heap)
        return bool(heap)

    def _counts(self, one):
        _, entry, index = one
        block = self._blocks.get(index)
        return block is not None and not block.away and block.entry == entry


class _Block:
    """What may leave: where it is, and when it was used."""

    __slots__ = ("size", "away", "dirty", "last", "intervals", "due", "entry")

    def __init__(self, size, now):
        self.size, self.last = size, now
        self.away, self.dirty, self.intervals = False, True, ()
        self.due = self.entry = None  # the next use; in _Order

    def used(self, now):
        if now - self.last >= _BURST:
            self.intervals = (now - self.last, *self.intervals[:3])
        self.last = now

    def period(self):
        """What followed the interval that the newest repeats; 0: not known."""
        known = self.intervals
        for length in range(1, len(known)):
            low, high = sorted((known[0], known[length]))
            if high - low <= high // 8 + _BURST:
                return known[length - 1]
        if not known:
            return 0
        return known[1] if len(known) == 2 else known[0]
