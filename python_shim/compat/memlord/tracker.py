# SPDX-License-Identifier: Apache-2.0
"""MemLord: the tracker.

Thread-safety: any thread. In a forked child it goes on with a copy of the
numbers, asks no GPU and collects nothing. While the interpreter ends nothing is
counted.
"""

import os
import sys
import threading
import weakref

import torch

from stratalloc.compat._package import format_size
from stratalloc.compat.memlord import (
    _accounts, _callsites, _collection, _creations, _log, _moves, _objects,
    _patches, _strategy, _usage)

_trackers = weakref.WeakSet()


class MemLord:
    """Counts bytes that are allocated and freed, by device.

    Args:
      auto_gc_strategy: when a device's memory is collected (_strategy.py). None
        is the default in three bands, {} never. ValueError: it is none.
      track_callsite: from the start, as set_callsite_tracking().
    """

    def __init__(self, auto_gc_strategy=None, *, track_callsite=False):
        self._strategy = _strategy.validated(auto_gc_strategy)
        self._accounts = _accounts.Accounts()
        self._usage = _usage.Usage(self)
        self._paces = {}
        self._collecting = threading.Lock()
        self._says = _log.wanted()
        self._snakes, self._moves = set(), set()  # handles that are on
        self.set_callsite_tracking(track_callsite)
        _trackers.add(self)

    def set_auto_gc_strategy(self, strategy):
        """From now on by this one; None is the default, {} never. ValueError
        names what is wrong, and the one before stays."""
        self._strategy = _strategy.validated(strategy)
        self._paces = {}
        if self._says:
            _log.say(_log.YELLOW, "auto_gc", f"{len(self._strategy)} bands")

    def set_callsite_tracking(self, enabled):
        """Whether lines of user code are noted with what they allocate and
        free, from now on. Off, the hotspots are None."""
        self._tracks = bool(enabled)
        self._accounts.track(_callsites.here if self._tracks else None)

    def allocate(self, obj):
        """Charges the storages of a tensor or module, or of a tuple or list of
        them, that are not charged already. With Python hooks on they are
        credited when they die.

        Raises: TypeError, naming what is neither; then nothing was charged.
        """
        if sys.is_finalizing():
            return
        self._tell(self._accounts.allocate(
            _objects.named(obj), False, bool(self._snakes), self._site()))

    def free(self, obj):
        """Credits their storages, once in the life of each; those that were
        never charged, too. One that a copy still reads is credited at the next
        synchronisation, with torch hooks on.

        Raises: TypeError, as allocate().
        """
        if sys.is_finalizing():
            return
        self._tell(self._accounts.free(_objects.named(obj), self._site()))

    def allocated(self, device=None):
        """(bytes, for people) that are allocated now: on all devices, on those
        of a torch.device("cuda"), or on one, torch.device("cuda", 1)."""
        self._settle()
        return _sum(self._accounts.allocated(), device)

    def freed(self, device=None):
        """(bytes, for people) that were freed, since reset() or, of a device,
        its last automatic collection. Devices as of allocated()."""
        self._settle()
        return _sum(self._accounts.freed(), device)

    def top_alloc_site(self, device=None):
        """(torch.device, "file:line", bytes): the line that allocated most on
        one device, in all; None: no site was tracked, or they are not now."""
        return self._top("allocate", device)

    def top_free_site(self, device=None):
        """As top_alloc_site(): the line that freed most. A storage that dies is
        freed by the line that let go of it."""
        return self._top("free", device)

    def hook_into_torch(self):
        """Moves are counted, and frees of what a copy still reads are credited
        at synchronisations, until TorchMoveHooks.disable()."""
        tickets = [
            _patches.listen(_moves.MOVES, _weakly(self, "_moved")),
            _patches.listen_around(_moves.MODULE_MOVES,
                                   _weakly(self, "_module_moves")),
            _patches.listen(_moves.SYNCHRONISATIONS,
                            _weakly(self, "_synchronised"))]
        return self._handle(_moves.TorchMoveHooks, tickets, self._moves,
                            _weakly(self, "_no_moves"))

    def hook_into_python(self, *, enable_factory_wrappers=True,
                         enable_deep_autowrap=True):
        """What PyTorch's functions make is charged, and what is charged from
        now on is credited when it dies, until SnakeHooks.disable().

        Args:
          enable_factory_wrappers: torch.empty and its kin.
          enable_deep_autowrap: the other functions and methods of tensors.
        """
        places = _creations.places(enable_factory_wrappers,
                                   enable_deep_autowrap)
        tickets = [_patches.listen(places, _weakly(self, "_made"))]
        return self._handle(_creations.SnakeHooks, tickets, self._snakes,
                            lambda: None)

    def reset(self):
        """All counters and hotspots to 0; strategy and hooks stay."""
        self._accounts.reset()
        self._paces = {}
        if self._says:
            _log.say(_log.MAGENTA, "reset", "counters and hotspots")

    def _handle(self, kind, tickets, handles, no_more):
        def ended(handle):
            for each in finalizers:
                each.detach()
            if handle in handles:
                handles.discard(handle)
                if not handles:
                    no_more()

        handle = kind(tickets, ended)
        handles.add(handle)
        finalizers = [weakref.finalize(self, ticket.end) for ticket in tickets]
        return handle

    # What is heard of PyTorch

    def _made(self, result, args, kwargs):
        storages = _objects.sighted(result)
        if storages:
            self._sight(storages, args, kwargs.values())

    def _moved(self, result, args, kwargs):
        self._made(result, args, kwargs)
        if result is not args[0]:
            self._accounts.took_off(_objects.sighted(args[0]),
                                    _moves.flight(result, args, kwargs))

    def _module_moves(self, args, kwargs):
        del kwargs
        move = _moves.ModuleMove(args[0])
        self._accounts.took_off(_moves.storages_of(args[0]), None)
        return lambda result: self._sight(move.made())

    def _synchronised(self, result, args, kwargs):
        del result, args, kwargs
        self._tell(self._accounts.landed())

    def _sight(self, storages, *arguments):
        """Charges those that are new, if they are no argument's."""
        new = [each for each in storages
               if not self._accounts.has(each) and not any(
                   _creations.is_of_arguments(each, values)
                   for values in arguments)]
        if new:
            self._tell(self._accounts.allocate(new, True, True, self._site()))

    def _no_moves(self):
        self._tell(self._accounts.landed(all=True))

    # What follows of it

    def _site(self):
        return _callsites.here() if self._tracks else None

    def _settle(self):
        if not sys.is_finalizing():
            self._tell(self._accounts.settle())

    def _tell(self, events):
        if not events:
            return
        devices = {device for _, device, _, _ in events}
        if self._says:
            _log.say_events(events)
            _log.say_summary(devices, self._accounts.allocated(),
                             self._accounts.freed())
        # A child must not destroy what its parent has on a GPU.
        if self._strategy and not _usage.is_child():
            for device in devices:
                self._maybe_collect(device)

    def _top(self, kind, device):
        if not self._tracks:
            return None
        self._settle()
        matches = _accounts.matching(device)
        found = [(one, site, size)
                 for one, sites in self._accounts.sites(kind).items()
                 if matches(one) for site, size in sites.items()]
        return max(found, key=lambda each: each[2], default=None)

    def _device_memory_stats(self, device):
        """(total bytes, used bytes, used percent); (None, None, 0.0): nobody
        knows. Automatic collections ask this; a test may put its own here."""
        return self._usage.of(device)

    def _maybe_collect(self, device):
        if not self._collecting.acquire(blocking=False):
            return  # what a collection frees begins no other
        try:
            total, used, percent = self._device_memory_stats(device)
            if not total or used is None:
                return
            rule = _strategy.rule_of(self._strategy, percent)
            if rule is None:
                return
            metric = rule["metric"]
            threshold = _strategy.threshold_bytes(rule, total)
            allocated = self._accounts.allocated().get(device, 0)
            freed = self._accounts.freed().get(device, 0)
            pace = self._paces.setdefault(device, _strategy.Pace())
            why = pace.due(metric, threshold, allocated, freed)
            if why is None:
                return
            _collection.collect(device)
            pace.collected(metric, threshold, allocated)
            events = self._accounts.settle()
            self._accounts.forget_freed(device)
            if self._says:
                _log.say_events(events)
                size = allocated if why == "allocated" else freed
                _log.say(_log.YELLOW, "auto_gc",
                         f"{device} is {percent:.1f} % full: {why} "
                         f"{format_size(size)} has reached "
                         f"{format_size(threshold)}; collected")
        finally:
            self._collecting.release()


def _weakly(tracker, name, ending=sys.is_finalizing):
    """Its method, for somebody who must not keep it alive."""
    known, method = weakref.ref(tracker), getattr(type(tracker), name)

    def heard(*told):
        found = known()
        return None if found is None or ending() else method(found, *told)

    return heard


def _sum(counters, device):
    matches = _accounts.matching(device)
    size = sum(value for one, value in counters.items() if matches(one))
    return size, format_size(size)


def _in_child():
    for tracker in list(_trackers):
        tracker._accounts.renew_lock()
        tracker._collecting = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
