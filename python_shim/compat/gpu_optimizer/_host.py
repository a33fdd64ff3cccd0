# SPDX-License-Identifier: Apache-2.0
"""Host: the memory of the host that a traced model's tensors take.

torch's profiler tells of each block that the CPU's allocator gives out, and
hooks open a range of its for each call of a layer, so that a block lies in the
layer that asked for it. A backward belongs to the layer whose forward has the
same sequence number.

The profiler is of the thread that begins it and of what autograd runs for it:
to others it tells no block, even where it is asked for all threads' operators.
Calls of layers on such threads are missing, and the end of a trace warns.

Bytes are those since the trace began: what was there before nobody tells. The
CPU's allocator keeps nothing that is free: what is reserved is allocated. The
profiler keeps every operator until the trace ends: it is for a few steps, and
there is one at a time.
"""

import atexit
import contextlib
import logging
import threading
import time

import numpy as np
import torch

from stratalloc.compat._package import Kind, counted, model
from stratalloc.compat.gpu_optimizer import _traced

_log = logging.getLogger("stratalloc")
_LAYER = "stratalloc layer "
_NODE = "autograd::engine::evaluate_function: "  # what autograd's engine runs


class Host:
    """As _ours.Ours; so_far() has nothing until the trace ends."""

    def __init__(self, traced, most):
        del most
        self._model = traced
        self._names = [_traced.NO_LAYER]
        self._handles = []
        self._profile = None
        self._missed = set()  # layers that were called where nobody listens

    def begin(self):
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError(
                "stratalloc: MemoryTracer(device=\"cpu\") needs torch's "
                "profiler, which is in use, and of which there is one; end it "
                "first")
        try:
            for name, module in self._model.named_modules():
                self._names.append(name)
                self._hook(module, f"{_LAYER}{len(self._names) - 1}")
            self._profile = torch.autograd.profiler.profile(
                use_cpu=True, profile_memory=True)
            self._profile.__enter__()
            _open.add(self)
        except BaseException:  # a module that takes no hook
            self._unhook()
            raise
        self._began = time.time_ns()

    def abandon(self):
        self._unhook()
        with contextlib.suppress(RuntimeError):  # its thread has ended
            self._profile.__exit__(None, None, None)

    def end(self):
        _open.discard(self)
        self._unhook()
        profile, self._profile = self._profile, None
        ended = time.time_ns()
        profile.__exit__(None, None, None)
        if self._missed:
            _log.warning(
                "stratalloc: MemoryTracer(device=\"cpu\") records the thread "
                "that enters the trace: calls of %s on other threads are "
                "missing; enter the trace on the thread that calls the model",
                counted(len(self._missed), "layer"))
        tree = profile.kineto_results.experimental_event_tree()
        return self._told(_Walk(tree, self._began), ended - self._began)

    def _unhook(self):
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def so_far(self):
        return self._told(_Walk([], self._began), 0)

    def _told(self, walk, duration):
        events = np.array(walk.rows, model.EVENT)
        run = model.Run(
            source="torch", started=self._began, duration=duration,
            scopes=_traced.paths(self._model, self._names), events=events,
            threads=[f"thread {one}" for one in walk.threads] or ["main"],
            devices=[model.Device(0, "host", start=(), tier=1)],
            about={"allocator": "torch's own, of the host"})
        scopes = np.arange(len(self._names), dtype="<u4")
        return run, self._names, scopes, scopes, False

    def _hook(self, module, label):
        if isinstance(module, torch.jit.ScriptModule):
            return  # takes hooks of scripts alone
        calls = threading.local()  # may be inside of each other

        def enter(*_):
            if not torch._C._autograd._profiler_enabled():  # on this thread
                self._missed.add(label)
                return
            if not hasattr(calls, "opened"):
                calls.opened = []
            calls.opened.append(torch.autograd.profiler.record_function(label))
            calls.opened[-1].__enter__()

        def leave(*_):
            if getattr(calls, "opened", None):
                calls.opened.pop().__exit__(None, None, None)

        for register, hook, how in (
                (module.register_forward_pre_hook, enter, {"prepend": True}),
                (module.register_forward_hook, leave, {"always_call": True})):
            self._handles.append(register(hook, **how))


_open = set()  # Hosts between begin() and end()


@atexit.register
def _abandon_all():
    """A profiler that is open while torch is unloaded crashes."""
    for host in list(_open):
        host.abandon()


class _Walk:
    """Rows of model.EVENT, of the profiler's trees."""

    def __init__(self, trees, began):
        self.rows, self.threads = [], {}
        self._began = began
        self._forward = {}  # sequence number -> layer
        backward = []
        for tree in trees:
            self._walk(tree, 0, backward)
        for event, layer in backward:  # all of forward is known by now
            self._walk(event, layer, None)
        self._own_frees()

    def _walk(self, event, layer, backward):
        todo = [(event, layer)]
        while todo:
            event, layer = todo.pop()
            fields = event.extra_fields
            kind = type(fields).__name__
            if kind == "_ExtraFields_Allocation":
                if fields.device.type == "cpu":
                    self._block(event, fields, layer)
            elif kind == "_ExtraFields_TorchOp":
                number = fields.sequence_number
                if event.name.startswith(_LAYER):
                    layer = int(event.name[len(_LAYER):])
                    self._span(event, layer)
                elif event.name.startswith(_NODE):
                    if backward is not None:
                        backward.append((event, layer))
                        continue
                    layer = self._forward.get(number, layer)
                    if layer:
                        self._span(event, layer, model.BACKWARD)
                elif number >= 0 and backward is not None:
                    self._forward[number] = layer
            todo += [(child, layer) for child in reversed(event.children)]

    def _put(self, time_ns, event, kind, layer, address=0, size=0, flags=0):
        thread = self.threads.setdefault(event.start_tid, len(self.threads))
        self.rows.append((max(0, time_ns - self._began), address, size, size,
                          layer, 0, 0, thread, kind, 0, 0, flags))

    def _span(self, event, layer, flags=0):
        self._put(event.start_time_ns, event, Kind.SCOPE_ENTER, layer,
                  flags=flags)
        self._put(event.end_time_ns, event, Kind.SCOPE_LEAVE, layer,
                  flags=flags)

    def _block(self, event, fields, layer):
        now, size = event.start_time_ns, fields.alloc_size
        if size > 0:
            self._put(now, event, Kind.ALLOC, layer, fields.ptr, size)
        elif size < 0:
            self._put(now, event, Kind.FREE_REQUESTED, 0, fields.ptr, -size)
            self._put(now, event, Kind.FREE_COMPLETED, 0, fields.ptr, -size)

    def _own_frees(self):
        """Frees belong to whom their blocks did; those of blocks that nobody
        saw made are left out."""
        self.rows.sort(key=lambda row: row[0])
        owners, kept = {}, []
        for row in self.rows:
            kind, address = row[8], row[1]
            if kind == Kind.ALLOC:
                owners[address] = row[4]
            elif kind in (Kind.FREE_REQUESTED, Kind.FREE_COMPLETED):
                if address not in owners:
                    continue
                row = (*row[:4], owners[address], *row[5:])
                if kind == Kind.FREE_COMPLETED:
                    del owners[address]
            kept.append(row)
        self.rows = kept
