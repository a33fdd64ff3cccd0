# SPDX-License-Identifier: Apache-2.0
"""What a tracer tells people: the summary, and what would help."""

import numpy as np

from stratalloc.compat._package import Page, Row, Table, counted, format_size
from stratalloc.compat.gpu_optimizer import _records

_TOP = 5
_MIB = 1 << 20
MODEL = "(the model)"  # whose name among its modules is ""

# What to do about each of telemetry's verdicts.
_HELP = {
    "out_of_memory": "stratalloc.enable(oom_dir=...) writes down, at the next "
                     "one, what would have served the request",
    "disk_bound": "give the host more room (host_budget), or the model less "
                  "to move: a smaller batch, checkpointing",
    "bus_bound": "pin what is used in every step (stratalloc.pin), or make "
                 "room for it: a smaller batch, checkpointing",
    "growing": "get_leaks() says who; stratalloc.leaks() watches a program "
               "that runs, and telemetry=\"callsites\" names the line",
    "fragmented": "stratalloc.fragmentation() says who pins the free memory; "
                  "allocate what stays before what comes and goes",
    "near_edge": "checkpoint the layers that hold most at the peak "
                 "(get_memory_at_peak), or let cold ones leave: "
                 "gpu_offload_threshold",
}


def no_rows():
    return np.zeros(0, _records.ROW)


def summary(events, layers, table, seconds, lost, devices, tracked=True):
    return {"total_events": events, "total_layers": len(layers),
            "peak_allocated_mb": table.get("peak_allocated", 0) / _MIB,
            "peak_reserved_mb": table.get("peak_reserved", 0) / _MIB,
            "avg_fragmentation": (table.get("avg_fragmentation", 0.0)
                                  if tracked else 0.0),
            "duration_s": seconds, "lost_events": lost,
            "devices": list(devices)}


def page(tracer):
    """A Page of print_summary()."""
    told = tracer.get_summary()
    layers = tracer._layers()
    if tracer._now() is None:
        return Page(["MemoryTracer: nothing was traced yet: use `with "
                     "tracer.trace(model):` and run the model inside"])
    lines = [f"MemoryTracer, {tracer.device}: "
             f"{counted(told['total_events'], 'event')} of "
             f"{counted(told['total_layers'], 'layer')} in "
             f"{told['duration_s']:.3f} s"]
    # The host's allocator keeps nothing that is free.
    tracked = (tracer.enable_fragmentation_tracking
               and tracer.device_kind == "cuda")
    lines.append("peak allocated " + _mib(told["peak_allocated_mb"])
                 + ", peak reserved " + _mib(told["peak_reserved_mb"])
                 + (f", {told['avg_fragmentation']:.1%} of the reserved free "
                    "on average" if tracked else ""))
    if told["lost_events"]:
        lines.append(f"{counted(told['lost_events'], 'event')} more happened "
                     "and were overwritten before they were read: the numbers "
                     "of layers are of the rest")
    if not layers:
        return Page([*lines, "no layer of the model ran or allocated anything: "
                     "call the model itself inside the trace, not its forward()"
                     ])
    top = sorted(layers.values(), key=lambda one: (
        -one["peak_allocated"], -one["peak_owned"], one["layer_name"]))
    lines.append(Table(
        ("while it ran, the most", "allocated", "its own", "blocks", "ms",
         *(["free"] if tracked else [])),
        [Row(one["layer_name"] or MODEL, (
            format_size(one["peak_allocated"]), format_size(one["peak_owned"]),
            str(one["total_allocations"]), f"{one['duration_ms']:.2f}",
            *([f"{one['avg_fragmentation']:.1%}"] if tracked else [])))
         for one in top[:_TOP]],
        rest=f"({len(top) - _TOP} more)" if len(top) > _TOP else ""))
    return Page(lines)


def _mib(mib):
    return format_size(round(mib * _MIB))


def recommendations(run, devices):
    """[str]: verdicts, and what to do about each."""
    from stratalloc.compat._package import verdict

    found = []
    for device in devices:
        told = verdict(run, device) if run.device(device) else None
        if told is None:
            continue
        name = f"cuda:{device}: " if len(devices) > 1 else ""
        for kind, said in ((told.kind, told.sentence), *told.others):
            help_ = _HELP.get(kind)
            found.append(name + said + (f"; {help_}" if help_ else ""))
    return found
