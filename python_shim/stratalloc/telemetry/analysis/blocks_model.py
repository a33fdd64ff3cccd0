# SPDX-License-Identifier: Apache-2.0
"""Blocks: address space cut into segments, segments into blocks, free blocks
filed in pools (allocator/heap/block_heap.h).

Where a free block has memory follows from the places under it (Handles).
"""

import bisect

from stratalloc.telemetry.analysis.bins_model import Bins

USED, BINNED, FREE, UNMAPPED = range(4)
NO_OWNER = (0, 0)  # of a pool that is not private
_REGION = 1 << 50  # address space of small and of large pools


class Block:
    """A part of a segment. `previous`, `next`: its neighbours there."""

    __slots__ = ("pool", "address", "size", "state", "previous", "next",
                 "segment")

    def __init__(self, segment, address, size, state):
        self.segment, self.pool = segment, segment.pool
        self.address, self.size, self.state = address, size, state
        self.previous = self.next = None

    @property
    def end(self):
        return self.address + self.size


class Segment:
    __slots__ = ("pool", "begin", "end")

    def __init__(self, pool, begin, end):
        self.pool, self.begin, self.end = pool, begin, end


class Pool:
    """Free blocks of one stream or private pool, small or large: `holes` by
    (size, address), `gaps` without memory by address, bins."""

    def __init__(self, key, small):
        self.key, self.small = key, small
        self.holes, self.gaps = [], []
        self.bins = Bins() if key[1] == NO_OWNER else None

    def file(self, block):
        if block.state == FREE:
            bisect.insort(self.holes, (block.size, block.address))
        else:
            bisect.insort(self.gaps, block.address)

    def unfile(self, block):
        if block.state == FREE:
            wanted, holes = (block.size, block.address), self.holes
        else:
            wanted, holes = block.address, self.gaps
        del holes[bisect.bisect_left(holes, wanted)]


class Blocks:
    """`resident`: the places that have memory; a place is an address divided
    by `handle`."""

    def __init__(self, handle, resident):
        self.handle, self._resident = handle, resident
        self._blocks = {}  # address -> Block
        self._addresses = []  # sorted
        self._top = {True: _REGION, False: 2 * _REGION}

    def __getitem__(self, address):
        """The block that begins there."""
        return self._blocks[address]

    def at(self, address):
        """The block that holds the address."""
        return self._blocks[self._addresses[
            bisect.bisect_right(self._addresses, address) - 1]]

    def add_segment(self, pool, size):
        """The address of a segment without memory."""
        begin = self._top[pool.small]
        end = begin + -(-size // self.handle) * self.handle
        self._top[pool.small] = end
        block = Block(Segment(pool, begin, end), begin, end - begin, UNMAPPED)
        self._insert(block)
        pool.file(block)
        return begin

    def hand_out(self, block, size):
        pool = block.pool
        pool.unfile(block)
        if block.size > size:
            pool.file(self._split(block, size))
        block.state = USED
        return block

    def give_back(self, block):
        block.state = FREE
        after = block.next
        if after is not None and after.state == FREE:
            block.pool.unfile(after)
            self._join(block)
        block = self._merge_back(block)
        block.pool.file(block)

    def empty(self, pool):
        for block in pool.bins.empty() if pool.bins else ():
            self.give_back(block)

    def _insert(self, block):
        self._blocks[block.address] = block
        bisect.insort(self._addresses, block.address)

    def _split(self, block, size):
        rest = Block(block.segment, block.address + size, block.size - size,
                     block.state)
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        self._insert(rest)
        return rest

    def _join(self, block):
        """The block grows over its next one; neither is filed."""
        gone = block.next
        block.size += gone.size
        block.next = gone.next
        if gone.next is not None:
            gone.next.previous = block
        del self._blocks[gone.address]
        del self._addresses[bisect.bisect_left(self._addresses, gone.address)]

    def _merge_back(self, block):
        before = block.previous
        if before is None or before.state != block.state:
            return block
        block.pool.unfile(before)
        self._join(before)
        return before

    def refile(self, segment, low, high):
        """Free blocks there are cut and joined by which of their handles have
        memory. Elsewhere that is as it was."""
        block = self.at(low)
        while block is not None and block.address < high:
            after = block.next
            if block.state >= FREE:
                segment.pool.unfile(block)
                while block is not None:
                    block = self._file_front(block, low, high)
            block = after
        if high < segment.end:
            last = self.at(high - 1)
            if (last.state >= FREE and last.next is not None
                    and last.next.state == last.state):
                segment.pool.unfile(last)
                segment.pool.unfile(last.next)
                self._join(last)
                last = self._merge_back(last)
                segment.pool.file(last)

    def _file_front(self, block, low, high):
        """Files the part that is alike; the rest, or None."""
        resident, handle = self._resident, self.handle
        was = block.state == FREE
        place = block.address // handle
        has = place in resident
        place = max(place + 1, min(low, block.end) // handle)
        stop = min(high, block.end)
        while place * handle < stop and (place in resident) == has:
            place += 1
        if high <= place * handle < block.end and has == was:
            place = -(-block.end // handle)
        rest = None
        if place * handle < block.end:
            rest = self._split(block, place * handle - block.address)
        block.state = FREE if has else UNMAPPED
        block = self._merge_back(block)
        block.pool.file(block)
        return rest

    def check(self, pools):
        """AssertionError unless blocks cover their segments and free ones are
        filed by what they are."""
        assert sorted(self._blocks) == self._addresses
        filed = {pool: 0 for pool in pools}
        for block in self._blocks.values():
            places = range(block.address // self.handle,
                           -(-block.end // self.handle))
            if block.state == UNMAPPED:
                assert not any(one in self._resident for one in places)
            else:
                assert all(one in self._resident for one in places)
            after = block.next
            assert block.size > 0 and (
                block.end == block.segment.end if after is None
                else block.end == after.address)
            if block.state >= FREE:
                filed[block.pool] += 1
                assert after is None or after.state != block.state
        for pool, count in filed.items():
            assert len(pool.holes) + len(pool.gaps) == count
