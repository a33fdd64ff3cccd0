# SPDX-License-Identifier: Apache-2.0
"""MemoryTracer: a model's run, recorded; asked afterwards, or meanwhile.

Thread-safety: every method; one trace at a time. Nothing is kept running
between traces: no thread, no hook, no file.
"""

import dataclasses
import os
import threading

import torch

from stratalloc.compat._package import state as _state
from stratalloc.compat.gpu_optimizer import _devices, _told
from stratalloc.compat.gpu_optimizer._records import Events, LayerMemoryStats
from stratalloc.compat.gpu_optimizer._traced import Traced


class MemoryTracer:
    """Records what a model does with memory, and tells it by layer.

    Args:
      max_events: int, of MemoryEvents that are kept, the newest; 88 bytes each
        at most.
      device: "cuda:0" or another, an index, a list of them, "all", or "cpu"
        for memory of the host.
      enable_fragmentation_tracking: bool; without it every ratio is 0 and
        get_fragmentation_stats() is empty.

    Raises:
      ValueError: max_events is below 1, or there is no such device.
      TypeError: one of them is of another type.
    """

    def __init__(self, max_events: int = 100000, device: str = "cuda:0",
                 enable_fragmentation_tracking: bool = True):
        if isinstance(max_events, bool) or not isinstance(max_events, int):
            raise TypeError("stratalloc: MemoryTracer: max_events must be an "
                            f"int, not {type(max_events).__name__}")
        if max_events < 1:
            raise ValueError(f"stratalloc: MemoryTracer: max_events="
                             f"{max_events} keeps nothing; use 1 or more")
        self._devices = _devices.checked(device)
        self.max_events = max_events
        self.device = device
        self.enable_fragmentation_tracking = bool(
            enable_fragmentation_tracking)
        self._lock = threading.RLock()
        self._under_way = None  # an Ours, Native or Host
        self._indices = []
        self._traced = None
        self._events = None  # (Traced, Events): made once

    @property
    def device_kind(self):
        """"cuda" or "cpu": whose memory is traced."""
        return "cpu" if self._devices == _devices.CPU else "cuda"

    # Recording.

    def trace(self, model):
        """A context manager: what happens inside is recorded.

        What was recorded before is forgotten. An exception inside ends the
        recording, which stays, and goes on.

        Raises:
          TypeError: model is no nn.Module.
          RuntimeError: this tracer records already; or, where it is entered,
            there is no GPU.
        """
        if not isinstance(model, torch.nn.Module):
            raise TypeError("stratalloc: MemoryTracer.trace: model must be an "
                            f"nn.Module, not {type(model).__name__}")
        return _Tracing(self, model)

    def _begin(self, model):
        with self._lock:
            if self._under_way is not None:
                raise RuntimeError(
                    "stratalloc: this MemoryTracer records already; end that "
                    "trace first, or make another MemoryTracer")
            recorder = self._recorder(model)
            self._traced = self._events = None
            recorder.begin()
            self._under_way = recorder

    def _recorder(self, model):
        if self._devices == _devices.CPU:
            from stratalloc.compat.gpu_optimizer._host import Host

            self._indices = [0]
            return Host(model, self.max_events)
        self._indices = _devices.resolved(self._devices)
        if _state.is_enabled():
            from stratalloc.compat.gpu_optimizer._ours import Ours

            return Ours(model, self.max_events)
        from stratalloc.compat.gpu_optimizer._native import Native

        return Native(model, self.max_events, self._indices)

    def _end(self):
        with self._lock:
            recorder, self._under_way = self._under_way, None
            self._traced = self._made(recorder.end())

    def _made(self, told, ended=True):
        return Traced(*told, self._indices, self.max_events, ended)

    def _now(self):
        """The Traced so far, or None where nothing was traced."""
        with self._lock:
            if self._under_way is not None:
                return self._made(self._under_way.so_far(), ended=False)
            return self._traced

    def run(self):
        """What was recorded, as stratalloc's own tools take it: telemetry's
        Run, with every scope, category and line of code. Of a trace that has
        ended, the newest `max_events`.

        Raises: RuntimeError: nothing was traced.
        """
        return self._something().run

    def _something(self):
        found = self._now()
        if found is None:
            raise RuntimeError("stratalloc: MemoryTracer has traced nothing "
                               "yet; use `with tracer.trace(model):`")
        return found

    # What it has to tell.

    @property
    def events(self):
        """Events: a sequence of MemoryEvent, the newest `max_events`; while a
        trace is under way those so far."""
        found = self._now()
        if found is None:
            return Events(_told.no_rows(), [], self.max_events)
        with self._lock:
            if self._events is not None and self._events[0] is found:
                return self._events[1]
            made = Events(found.rows(), found.names, self.max_events,
                          self.enable_fragmentation_tracking)
            if found is self._traced:  # not one of a trace that goes on
                self._events = found, made
            return made

    @property
    def lost_events(self):
        """int: events that happened and were overwritten before they could be
        read, so that layers' counts lack them."""
        found = self._now()
        return 0 if found is None else found.lost

    def get_layer_stats(self) -> "dict[str, LayerMemoryStats]":
        """name in model.named_modules() -> LayerMemoryStats, of every layer
        that was called or allocated something; "" is the model itself."""
        return {name: LayerMemoryStats(**{
            field.name: one[field.name]
            for field in dataclasses.fields(LayerMemoryStats)})
            for name, one in self._layers().items()}

    def get_peak_memory_per_layer(self) -> "dict[str, int]":
        """name -> the most that was allocated while it ran, in bytes."""
        return {name: one["peak_allocated"]
                for name, one in self._layers().items()}

    def get_owned_memory_per_layer(self) -> "dict[str, int]":
        """name -> the most that blocks of the layer itself had together, in
        bytes: parameters, gradients, activations and optimizer state."""
        return {name: one["peak_owned"]
                for name, one in self._layers().items()}

    def get_memory_at_peak(self) -> "dict[str | None, int]":
        """name -> bytes of the layer itself when most was allocated; of None:
        what was no layer's. They add up to the peak."""
        found = self._now()
        return {} if found is None else dict(found.table()["held_at_peak"])

    def get_fragmentation_stats(self) -> "dict[str, float]":
        """name -> mean of (reserved - allocated) / reserved while it ran; {}
        without enable_fragmentation_tracking."""
        if not self.enable_fragmentation_tracking:
            return {}
        return {name: one["avg_fragmentation"]
                for name, one in self._layers().items()}

    def get_summary(self):
        """dict: total_events, total_layers, peak_allocated_mb,
        peak_reserved_mb (MiB), avg_fragmentation (over all events),
        duration_s, lost_events, devices."""
        found = self._now()
        if found is None:
            return _told.summary(0, {}, {}, 0.0, 0, [])
        table = found.table()
        return _told.summary(
            len(self.events), table["layers"], table, found.run.duration / 1e9,
            found.lost, found.devices,
            self.enable_fragmentation_tracking)

    def _layers(self):
        found = self._now()
        layers = {} if found is None else found.table()["layers"]
        if self.enable_fragmentation_tracking:
            return layers
        return {name: {**one, "avg_fragmentation": 0.0}
                for name, one in layers.items()}

    def get_leaks(self):
        """Who holds more after each step of all that was traced: telemetry's
        Leaks, a list of rows and a page. Steps end at stratalloc.mark(), else
        at an optimizer's steps or the model's calls; 12 at least. While a
        program runs: stratalloc.leaks()."""
        return self._something().leaks()

    def get_recommendations(self):
        """[str]: what all that was traced comes to and what would help, the
        gravest first."""
        return list(self._something().recommendations())

    # Files and people.

    def export_flame_graph(self, output_path):
        """Writes a file for speedscope, and the directories that it lacks.

        Raises:
          ValueError: nothing was traced, or nothing happened in the trace.
          OSError: it cannot be written.
        """
        from stratalloc.compat._package import speedscope

        speedscope.write(self._recorded("a flame graph"), _place(output_path))

    def export_timeline(self, output_path):
        """Writes JSON: events, layer_stats, summary; and recording, which says
        what is missing. Makes the directories that it lacks.

        Raises: as export_flame_graph.
        """
        from stratalloc.compat._package import notes, timeline

        run = self._recorded("a timeline")
        timeline.write_parts(
            _place(output_path), map(dataclasses.asdict, self.events),
            self._layers(), self.get_summary(), notes(run))

    def export_tensorboard(self, folder):
        """Writes TensorBoard's event file into a folder, which is made.

        Raises: as export_flame_graph; MissingPackageError: tensorboard is not
          installed.
        """
        from stratalloc.compat._package import scalars

        scalars.write(self._recorded("TensorBoard"), _place(folder))

    def _recorded(self, what):
        found = self._now()
        if found is None or found.is_empty():
            raise ValueError(f"stratalloc: nothing was recorded that {what} "
                             "could show; use `with tracer.trace(model):` and "
                             "run the model inside")
        return found.run

    def print_summary(self):
        """Prints totals and the layers that needed most."""
        print(_told.page(self).text())

    def serve(self, port=0, addr="127.0.0.1"):
        """Serves the process's memory, by layer, to a dashboard while it runs:
        stratalloc.serve_metrics. `stratalloc top` shows it in a terminal."""
        from stratalloc.compat._package import serve_metrics

        return serve_metrics(port, addr)

    def __repr__(self):
        state = ("recording" if self._under_way is not None else
                 "nothing traced" if self._traced is None else
                 f"{self._traced.run.duration / 1e9:.3f} s traced")
        return f"<MemoryTracer of {self.device}: {state}>"


class _Tracing:
    """What trace() returns; entered once at a time, as its tracer."""

    def __init__(self, tracer, model):
        self._tracer, self._model = tracer, model

    def __enter__(self):
        self._tracer._begin(self._model)
        return self._tracer

    def __exit__(self, kind, error, trace):
        try:
            self._tracer._end()
        except Exception as ours:
            if kind is None:
                raise
            error.add_note(f"stratalloc: and what was traced is lost: {ours}"
                           ) if hasattr(error, "add_note") else None
        return False


def _place(path):
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    return path
