# SPDX-License-Identifier: Apache-2.0
"""Bins: the blocks of one pool that were freed last, by exact size, newest
first, as allocator/heap/block_bins.h keeps them: two places for a size, bounds, and
a refusal where another size is in both."""

_MOST_BLOCKS = 64
MOST_BYTES = 128 << 20
_PLACES = 128


class Bins:
    """`count`: blocks; `largest`: no block is larger."""

    def __init__(self):
        self.count = self._bytes = self.largest = 0
        self._size = [0] * _PLACES
        self._blocks = [[] for _ in range(_PLACES)]

    def take(self, size):
        """The newest block of exactly this size, or None."""
        place = _place(size)
        if self._size[place] != size:
            place ^= 1
        if self._size[place] != size or not self._blocks[place]:
            return None
        self.count -= 1
        self._bytes -= size
        return self._blocks[place].pop()

    def put(self, block):
        """False if the bounds or two other sizes refuse it."""
        size = block.size
        if self.count == _MOST_BLOCKS or self._bytes + size > MOST_BYTES:
            return False
        place = _place(size)
        if self._size[place] != size and self._blocks[place]:
            place ^= 1
            if self._size[place] != size and self._blocks[place]:
                return False
        self._size[place] = size
        self._blocks[place].append(block)
        self.count += 1
        self._bytes += size
        self.largest = max(self.largest, size)
        return True

    def empty(self):
        """All blocks, which are in no bin any more."""
        if not self.count:
            return []
        found = [block for place in self._blocks for block in place]
        for place in self._blocks:
            place.clear()
        self.count = self._bytes = self.largest = 0
        return found


def _place(size):
    return (size // 512 * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 57
