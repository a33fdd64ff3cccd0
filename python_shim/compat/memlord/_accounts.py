# SPDX-License-Identifier: Apache-2.0
"""Bytes allocated and freed by device: each storage once in its life.

    accounts = Accounts()
    accounts.allocate(storages, hooked=False, dies=True, site="train.py:7")
    accounts.free(storages, site)
    accounts.allocated(), accounts.freed()      # {torch.device: bytes}

A storage is charged when it is first named or sighted, and credited when it is
freed or dies, whichever is first. Freed by name it is remembered until it dies,
so that nobody frees it again; only naming it to allocate() charges it anew. A
storage that was never charged and is freed by name is credited without a
charge; allocated never falls for it.

In flight is a storage that a copy still reads: freed or dead, it is credited by
landed(), and stays allocated until then.

Thread-safety: any thread; one lock, under which no code of others runs. A
storage may die anywhere, under this lock too, and where Python would discard
the KeyboardInterrupt that reaches a function of its: what is called is append()
of a deque, C's, and whoever comes next settles what lies there. What waits is
never more than what lived when somebody last charged or credited anything. A
storage's place cannot be another's before that call. While sites are tracked
a function of Python does run there: there is no other way to know the line.

Events are returned, not told under the lock: ("allocate" | "free", device,
bytes, site).
"""

import collections
import sys
import threading
import weakref

import torch


class _Entry(weakref.ref):
    """One storage; `bytes` 0: it is freed. Equality is identity."""

    __slots__ = ("key", "device", "bytes", "in_total", "dies", "flights",
                 "site", "witness")
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class _Witness(weakref.ref):
    """Notes by which line a storage dies."""

    __slots__ = ("key",)


class Accounts:

    def __init__(self):
        self.renew_lock()
        self._entries = {}  # id of the storage's object -> _Entry
        self._dead = collections.deque()  # entries: not credited yet
        self._lines = {}  # id of a storage's object -> site: where it died
        self._flying = set()  # entries that copies still read
        self._landing = set()  # those of them that were freed or died
        self._allocated = collections.defaultdict(int)
        self._freed = collections.defaultdict(int)
        self._sites = {"allocate": {}, "free": {}}
        self._witness = None  # a callback of Python's

    def renew_lock(self):
        """For the child of a fork: whoever held the lock is not there."""
        self._lock = threading.Lock()

    def track(self, site):
        """From now on site() is the line by which a storage dies; None: it is
        not asked for. What died before has none of this one."""
        with self._lock:
            self._witness = site and _witness(self._lines, site)
            for entry in list(self._entries.values()):
                self._watch(entry, entry())

    def allocate(self, storages, hooked, dies, site=None):
        """Charges storages; returns events.

        Args:
          hooked: they were sighted, not named: what is known already, freed or
            not, is left as it is.
          dies: they are credited when they die.
        """
        with self._lock:
            events = self._bury()
            for storage in storages:
                entry, size = self._known(storage), storage.nbytes()
                if entry is None:
                    entry = self._enter(storage)
                    events += self._charge(entry, size, site)
                elif entry in self._landing:
                    if not hooked:  # its free is taken back
                        self._landing.remove(entry)
                elif not hooked and not (entry.bytes and entry.in_total):
                    events += self._charge(entry, size, site)
                elif entry.bytes and entry.in_total and entry.bytes != size:
                    events += self._resized(entry, size, site)
                entry.dies = entry.dies or dies
        return events

    def free(self, storages, site=None):
        """Credits storages; returns events."""
        with self._lock:
            events = self._bury()
            for storage in storages:
                entry = self._known(storage)
                if entry is None:
                    entry = self._enter(storage)
                    entry.bytes, entry.in_total = storage.nbytes(), False
                if entry.bytes:
                    events += self._end(entry, site)
        return events

    def settle(self):
        """Credits what died; returns events."""
        with self._lock:
            return self._bury()

    def has(self, storage):
        """Is there nothing to do for one that was sighted?"""
        entry = self._known(storage)
        return entry is not None and entry.dies and (
            not entry.bytes or not entry.in_total
            or entry.bytes == storage.nbytes())

    def took_off(self, storages, event):
        """What these hold is read until event.query() is true. From now on they
        are credited when they die, if they are charged at all."""
        with self._lock:
            for storage in storages:
                entry = self._known(storage)
                if entry is not None:
                    entry.dies = True
                    if event is not None:
                        entry.flights = (*entry.flights, event)
                        self._flying.add(entry)

    def landed(self, all=False):  # noqa: A002
        """Credits what was freed in flight and is not any more, or `all`."""
        with self._lock:
            events = self._bury()
            over = [entry for entry in self._flying
                    if all or _over(entry.flights)]
            for entry in over:
                if entry in self._landing:
                    self._landing.remove(entry)
                    events += self._credit(entry, entry.site)
                self._flying.discard(entry)
                entry.flights = ()
        return events

    def reset(self):
        """All counters and sites to 0. What lives is in no total any more; if
        it is freed or dies, that is told."""
        with self._lock:
            self._bury()
            self._allocated.clear()
            self._freed.clear()
            for kind in self._sites.values():
                kind.clear()
            for entry in [*self._entries.values(), *self._landing]:
                entry.in_total = False

    def forget_freed(self, device):
        with self._lock:
            self._freed.pop(device, None)

    def allocated(self):
        return dict(self._allocated)

    def freed(self):
        return dict(self._freed)

    def sites(self, kind):
        """{device: {site: bytes}} of "allocate" or "free"."""
        with self._lock:
            return {device: dict(sites)
                    for device, sites in self._sites[kind].items()}

    def _known(self, storage):
        """Its entry, or None; that of a dead one may still be in its place."""
        entry = self._entries.get(id(storage))
        return entry if entry is not None and entry() is storage else None

    def _enter(self, storage):
        entry = _Entry(storage, self._dead.append)
        entry.key, entry.device = id(storage), storage.device
        entry.bytes, entry.in_total = 0, False
        entry.dies, entry.flights, entry.site = False, (), None
        self._entries[entry.key] = entry
        self._watch(entry, storage)
        return entry

    def _watch(self, entry, storage):
        """Of two callbacks the younger one comes first: the line is noted
        when the entry lies among the dead."""
        entry.witness = None
        if self._witness is not None and storage is not None:
            entry.witness = _Witness(storage, self._witness)
            entry.witness.key = entry.key

    def _charge(self, entry, size, site):
        entry.bytes, entry.in_total = size, True
        self._allocated[entry.device] += size
        return [self._told("allocate", entry.device, size, site)]

    def _resized(self, entry, size, site):
        more = size - entry.bytes
        entry.bytes = size
        self._allocated[entry.device] += more
        if more > 0:
            return [self._told("allocate", entry.device, more, site)]
        self._freed[entry.device] -= more
        return [self._told("free", entry.device, -more, site)]

    def _end(self, entry, site):
        """Credits it, or leaves that to landed()."""
        if entry.flights:
            if entry not in self._landing:
                entry.site = site
                self._landing.add(entry)
            return []
        return self._credit(entry, site)

    def _credit(self, entry, site):
        size, entry.bytes = entry.bytes, 0
        if entry.in_total:
            self._allocated[entry.device] -= size
        self._freed[entry.device] += size
        return [self._told("free", entry.device, size, site)]

    def _bury(self):
        events = []
        while self._dead:
            entry = self._dead.popleft()
            site = self._lines.pop(entry.key, None)
            if self._entries.get(entry.key) is entry:
                del self._entries[entry.key]
            if entry.bytes and entry.dies:
                events += self._end(entry, site)
        return events

    def _told(self, kind, device, size, site):
        if site is not None:
            sites = self._sites[kind].setdefault(device, {})
            sites[site] = sites.get(site, 0) + size
        return kind, device, size, site


def _over(flights):
    return all(event.query() for event in flights)


def _witness(lines, site, ending=sys.is_finalizing):
    """Of a _Witness: it holds no Accounts, so there is no cycle."""

    def died(witness):
        if not ending():
            lines[witness.key] = site()

    return died


def matching(device):
    """A function: does a device of the counters belong to this one? None: all;
    one without an index: all of its type."""
    if device is None:
        return lambda one: True
    wanted = torch.device(device)
    return lambda one: one.type == wanted.type and (
        wanted.index is None or wanted.index == (one.index or 0))
