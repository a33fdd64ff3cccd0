# SPDX-License-Identifier: Apache-2.0
"""Native: a traced model under torch's own allocator.

Its memory history says what was allocated and freed, and hooks of the modules
when each was called. History has no threads and no layers: a hook notes how
many blocks had been allocated and freed by then, which is where it belongs
among the events, and what is allocated is charged to the layer that was entered
last. On one thread that is exact, for forward; backward is charged to nobody,
since hooks of it would change the graph.

The history of a program that records one itself is used and left as it is.
Fails as torch does.
"""

import collections
import dataclasses
import threading
import time

import numpy as np
import torch

from stratalloc.compat._package import Kind, import_torch, model
from stratalloc.compat.gpu_optimizer import _traced

_COUNTED = (Kind.ALLOC, Kind.FREE_REQUESTED)
_PER_EVENT = 3  # entries of history: a free has two


class Native:
    """As _ours.Ours."""

    def __init__(self, traced, most, devices):
        self._model, self._most, self._devices = traced, most, devices
        self._names = [_traced.NO_LAYER]
        # (ns since 1970, enters, layer, thread, blocks so far of each device)
        self._calls = collections.deque(maxlen=2 * most)
        self._handles = []
        self._began = None

    def begin(self):
        _history.take(_PER_EVENT * self._most)
        try:
            self._began = (time.time_ns(), self._so_many())
            for name, module in self._model.named_modules():
                self._names.append(name)
                self._hook(module, len(self._names) - 1)
        except BaseException:  # a module that takes no hook
            self._unhook()
            _history.give_back()
            raise

    def end(self):
        self._unhook()
        try:
            return self.so_far()
        finally:
            _history.give_back()

    def _unhook(self):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def so_far(self):
        calls = list(self._calls)
        told, many = torch.cuda.memory._snapshot(), self._so_many()
        ended = time.time_ns()
        told["external_annotations"] = []
        run = import_torch.from_snapshot(told)
        paths = _traced.paths(self._model, self._names)
        run = _Merged(run, self._devices, self._began, many, ended).run(
            calls, paths)
        scopes = np.arange(len(self._names), dtype="<u4")
        return run, self._names, scopes, scopes, True

    def _so_many(self):
        """Blocks that were allocated and freed so far, of each device."""
        found = []
        for device in self._devices:
            told = torch._C._cuda_memoryStats(device)["allocation"]["all"]
            found.append(told["allocated"] + told["freed"])
        return found

    def _hook(self, module, layer):
        calls, so_many = self._calls, self._so_many
        now, thread = time.time_ns, threading.get_ident

        def enter(*_):
            calls.append((now(), True, layer, thread(), so_many()))

        def leave(*_):
            calls.append((now(), False, layer, thread(), so_many()))

        if isinstance(module, torch.jit.ScriptModule):
            return  # takes hooks of scripts alone
        for register, hook, how in (
                (module.register_forward_pre_hook, enter, {"prepend": True}),
                (module.register_forward_hook, leave, {"always_call": True})):
            self._handles.append(register(hook, **how))


class _Merged:
    """The run of history, with the calls among its events."""

    def __init__(self, run, devices, began, many, ended):
        self._run, self._devices = run, devices
        self._began_ns, first = began
        self._many, self._ended = many, ended
        self._counted = [np.flatnonzero(
            np.isin(run.events["kind"], [int(kind) for kind in _COUNTED])
            & (run.events["device"] == device)) for device in devices]
        self._lost = sum(max(0, last - one - len(at)) for last, one, at in zip(
            many, first, self._counted))
        self._first = max(0, self._place(first))

    def _place(self, many):
        """How many events had happened when there had been so many blocks; -1
        before the first that is known."""
        places = []
        for last, one, at in zip(self._many, many, self._counted):
            known = len(at) - (last - one)
            if known < 0:
                return -1
            if known:
                places.append(int(at[known - 1]) + 1)
        return max(places, default=0)

    def run(self, calls, names):
        events = self._run.events
        rows = np.zeros(len(calls), model.EVENT)
        threads = {}
        for row, (now, enters, layer, thread, _) in zip(rows, calls):
            row["time"] = now - self._run.started
            row["scope"] = layer
            row["kind"] = Kind.SCOPE_ENTER if enters else Kind.SCOPE_LEAVE
            row["thread"] = threads.setdefault(thread, len(threads))
        places = np.array([self._place(many) for *_, many in calls], "<i8")
        known = places >= self._first
        order = np.argsort(np.concatenate([
            np.arange(self._first, len(events)), places[known] - .5]),
            kind="stable")
        merged = np.concatenate([events[self._first:], rows[known]])[order]
        began = self._began_ns - self._run.started
        if not self._run.started:  # there is no event to count from
            merged["time"] += self._run.started
        merged["time"] = np.maximum.accumulate(
            np.maximum(merged["time"] - began, 0))
        _charge(merged)
        return dataclasses.replace(
            self._run, events=merged, scopes=names, started=self._began_ns,
            duration=max(0, self._ended - self._began_ns),
            dropped=self._lost, complete_from=int(
                merged["time"][0]) if self._lost and len(merged) else 0,
            threads=[f"thread {one}" for one in threads] or ["main"],
            devices=[self._device(index) for index in sorted(
                {*self._devices, *(one.index for one in self._run.devices)})],
            about={"allocator": "torch's own"})

    def _device(self, index):
        found = self._run.device(index) or model.Device(index, end=())
        # Labels of torch are none of these layers'.
        return dataclasses.replace(found, start=None, end=tuple(
            dataclasses.replace(segment, blocks=tuple(
                dataclasses.replace(block, scope=0)
                for block in segment.blocks)) for segment in found.end or ()))


def _charge(events):
    """Gives blocks to the layer that was entered last and not left, and their
    frees to whom they were charged."""
    inside, owners, scopes = [], {}, []
    for kind, scope, device, address in zip(*(
            events[name].tolist() for name in (
                "kind", "scope", "device", "address"))):
        if kind == Kind.SCOPE_ENTER:
            inside.append(scope)
        elif kind == Kind.SCOPE_LEAVE:
            if scope in inside:
                del inside[len(inside) - 1 - inside[::-1].index(scope)]
        elif kind == Kind.ALLOC:
            scope = owners[device, address] = inside[-1] if inside else 0
        elif kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED):
            scope = owners.get((device, address), 0)
        else:
            scope = 0
        scopes.append(scope)
    events["scope"] = scopes


class _History:
    """torch's memory history, on while somebody needs it."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users, self._ours = 0, False

    def take(self, entries):
        with self._lock:
            if self._users == 0:
                self._ours = not torch._C._cuda_isHistoryEnabled()
                if self._ours:
                    torch.cuda.memory._record_memory_history(
                        "all", context=None, max_entries=entries)
            self._users += 1

    def give_back(self):
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._ours:
                self._ours = False
                torch.cuda.memory._record_memory_history(None)


_history = _History()
