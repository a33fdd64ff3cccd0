# SPDX-License-Identifier: Apache-2.0
"""Handles: which memory is at which place, as the allocator keeps it
(allocator/memory/page_store.h, device/handle_pool.h).

A place is a number: its address divided by the size of a handle. One that gave
its memory up keeps the mapping: wanted again, it gets that memory back, from
wherever it is free by then, before any other.
"""


class Memory:
    """One handle. `at`: the place that uses it, unless it is free."""

    __slots__ = ("at", "free")

    def __init__(self):
        self.at, self.free = None, False


class Handles:
    """`used` handles now, of `limit`; places that have memory: `resident`."""

    def __init__(self, limit):
        self.limit = limit
        self.used = 0
        self.resident = set()
        self.kept = {}  # place -> the Memory that is mapped there
        self._free = {}  # Memory -> None, the one freed last at the end

    def free_count(self):
        return len(self._free)

    def give_up(self, place, keeps):
        """The place has no memory any more; it waits for the next one."""
        memory = self.kept[place]
        self.resident.remove(place)
        if not keeps:
            del self.kept[place]
        memory.free = True
        self._free[memory] = None
        self.used -= 1

    def map(self, places):
        """Memory for places that have none; False beyond the limit."""
        if self.used + len(places) > self.limit:
            return False
        fresh = []
        for place in places:
            memory = self.kept.get(place)
            if memory is not None and memory.free:
                self._take(memory, place)
            else:
                fresh.append(place)
        for place in fresh:
            self._take(next(reversed(self._free), None) or Memory(), place)
        self.resident.update(places)
        self.used += len(places)
        return True

    def _take(self, memory, place):
        self._free.pop(memory, None)
        memory.free, memory.at = False, place
        self.kept[place] = memory

    def check(self):
        assert self.used == len(self.resident) <= self.limit
        for place in self.resident:
            assert self.kept[place].at == place and not self.kept[place].free
        assert all(memory.free for memory in self._free)
