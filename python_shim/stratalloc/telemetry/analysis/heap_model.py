# SPDX-License-Identifier: Apache-2.0
"""HeapModel: where blocks would go on a card of another size.

As the allocator: requests are rounded to 512 bytes; small ones (1 MiB at most)
and large ones of each stream and private pool have a range of addresses of
their own, backed by handles; the smallest hole that is large enough is taken, at
the lowest address, and what is left of it stays a hole. What has no hole gets
handles where the fewest are needed: first those in which nothing lives, from
wherever they are, then new ones.

No streams wait here: a block's bytes are free when its free has completed.
"""

import bisect

SMALL = 1 << 20  # the largest request of a small pool


class NoRoomError(Exception):
    """A request needs more handles than there are."""


class HeapModel:
    """`mapped`: bytes of handles now, `most` ever."""

    def __init__(self, capacity, handle=2 << 20):
        self.capacity, self.handle = capacity // handle * handle, handle
        self.mapped = self.most = 0
        self._pools = {}

    def allocate(self, key, requested):
        """(pool, address, size): what free() takes.

        Raises:
          NoRoomError: it does not fit, whatever is given back.
        """
        size = max(512, -(-requested // 512) * 512)
        pool = self._pools.get((key, size <= SMALL))
        if pool is None:
            pool = self._pools[key, size <= SMALL] = _Pool(self.handle)
        address = pool.take(size)
        if address is None:
            address = self._grow(pool, size)
        return pool, address, size

    def free(self, block):
        pool, address, size = block
        pool.give(address, size)

    def _grow(self, pool, size):
        _, _, wanted, holes = pool.place(size)
        for other in self._pools.values():
            # What the block will take of holes must stay.
            freed = other.release(wanted, holes if other is pool else {})
            self.mapped -= freed * self.handle
            wanted -= freed
        start, first, count, _ = pool.place(size)
        if self.mapped + count * self.handle > self.capacity:
            raise NoRoomError
        pool.map(first, count)
        self.mapped += count * self.handle
        self.most = max(self.most, self.mapped)
        pool.take_at(start, size)
        return start

    def check(self):
        """AssertionError unless holes and blocks cover what is mapped."""
        assert self.mapped == sum(len(one.handles) * self.handle
                                  for one in self._pools.values())
        assert self.mapped <= self.capacity
        for pool in self._pools.values():
            pool.check()


class _Pool:
    """One range of addresses: holes by size and by place, handles mapped."""

    def __init__(self, handle):
        self.handle = handle
        self.handles = set()  # numbers of those that are mapped
        self._top = 0  # the first number that never was
        self._gaps = []  # numbers below it that are not mapped, sorted
        self._sizes = []  # (size, address), sorted
        self._begins, self._ends = {}, {}  # address -> size; end -> address
        self._blocks = {}  # for check()

    def take(self, size):
        """The address of a block in the best hole, or None."""
        at = bisect.bisect_left(self._sizes, (size, 0))
        if at == len(self._sizes):
            return None
        length, address = self._sizes[at]
        self._remove(address, length)
        if length > size:
            self._insert(address + size, length - size)
        self._blocks[address] = size
        return address

    def take_at(self, address, size):
        """The block at the beginning of the hole there."""
        length = self._begins[address]
        self._remove(address, length)
        if length > size:
            self._insert(address + size, length - size)
        self._blocks[address] = size

    def give(self, address, size):
        del self._blocks[address]
        before = self._ends.get(address)
        if before is not None:
            length = address - before
            self._remove(before, length)
            address, size = before, size + length
        after = self._begins.get(address + size)
        if after is not None:
            self._remove(address + size, after)
            size += after
        self._insert(address, size)

    def _insert(self, address, size):
        bisect.insort(self._sizes, (size, address))
        self._begins[address] = size
        self._ends[address + size] = address

    def _remove(self, address, size):
        del self._sizes[bisect.bisect_left(self._sizes, (size, address))]
        del self._begins[address], self._ends[address + size]

    def place(self, size):
        """(address, first handle, how many, {hole: bytes of it}): where the
        fewest handles are new."""
        best = None
        for first, last in [*_ranges(self._gaps), (self._top, None)]:
            begin = first * self.handle
            start = self._ends.get(begin, begin)
            new = -(-(start + size - begin) // self.handle)
            holes = {start: begin - start}
            if last is not None and new > last - first:
                new, end = last - first, last * self.handle
                holes[end] = start + size - end
                if self._begins.get(end, 0) < holes[end]:
                    continue
            if best is None or new < best[2]:
                best = start, first, new, holes
        return best

    def map(self, first, count):
        numbers = range(first, first + count)
        self.handles.update(numbers)
        if first == self._top:
            self._top += count
        else:
            at = bisect.bisect_left(self._gaps, first)
            del self._gaps[at:at + count]
        begin, end = first * self.handle, (first + count) * self.handle
        self._blocks[begin] = end - begin
        self.give(begin, end - begin)

    def release(self, most, keep):
        """Unmaps up to so many handles in which nothing lives; how many.
        `keep`: so many bytes of these holes stay."""
        done = 0
        for size, address in list(reversed(self._sizes)):
            if done >= most:
                break
            first = -(-(address + keep.get(address, 0)) // self.handle)
            last = (address + size) // self.handle
            first = max(first, last - (most - done))
            if first >= last:
                continue
            self._remove(address, size)
            if address < first * self.handle:
                self._insert(address, first * self.handle - address)
            if last * self.handle < address + size:
                self._insert(last * self.handle,
                             address + size - last * self.handle)
            for number in range(first, last):
                self.handles.remove(number)
                bisect.insort(self._gaps, number)
            done += last - first
        return done

    def check(self):
        at, total = None, 0
        for address, size in sorted([*self._begins.items(),
                                     *self._blocks.items()]):
            assert size > 0 and (at is None or address >= at)
            at = address + size
            total += size
            for number in (address // self.handle, (at - 1) // self.handle):
                assert number in self.handles
        assert total == len(self.handles) * self.handle
        assert sorted(self._gaps) == self._gaps
        assert not self.handles & set(self._gaps)


def _ranges(numbers):
    """[(first, behind the last)] of runs."""
    found = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
