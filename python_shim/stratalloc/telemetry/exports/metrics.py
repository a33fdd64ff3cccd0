# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run, as families of samples: what Prometheus, OpenMetrics and
OpenTelemetry are told. Names and labels are those of families.py; scopes are
told only if they are asked for, and then the largest."""

import numpy as np

from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis.traffic import under_way
from stratalloc.telemetry.exports.families import Families
from stratalloc.telemetry.exports.tiers import Tiers
from stratalloc.telemetry.model import Kind


def families(run, modules=0):
    """[Family] of the state at the run's end.

    Args:
      modules: so many scopes of each device are told, the largest holders at
        the end; the rest is one, "(other)".
    """
    found = Families(run.about.get("rank"))
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        _of_memory(found, run, walked)
        _of_events(found, run, walked)
        _of_moves(found, run, index)
        if modules:
            _of_modules(found, run, walked, modules)
    found.put("trace_events", len(run.events))
    found.put("trace_dropped", run.dropped)
    found.put("trace_names_lost", run.names_lost)
    found.put("trace_stacks_lost", run.stacks_lost)
    found.put("trace_overhead_seconds", run.overhead / 1e9)
    found.put("build_info", 1, *(run.about.get(key, "")
                                 for key in ("stratalloc", "torch")))
    return found.all()


def _of_memory(found, run, walked):
    index, last = walked.index, len(run.events) - 1
    for name in ("allocated", "requested", "active", "reserved"):
        found.put(f"memory_{name}_bytes", getattr(walked, name).last(), index,
                  "device")
    for tier, size in Tiers(run, index).at(last).items():
        found.put("tier_bytes", size, index, tier)
    found.put("memory_largest_free_block_bytes", max(
        (block.size for one in replay.segments_at(walked, last)
         for block in one.blocks if block.state == model.FREE), default=0),
        index, "device")
    for name in ("allocated", "reserved"):
        found.put(f"memory_peak_{name}_bytes", getattr(walked, name).most(),
                  index)
    if walked.device.capacity:
        found.put("memory_capacity_bytes", walked.device.capacity, index)
    held = {}
    for one in walked.holders(last):
        held[one.category] = held.get(one.category, 0) + one.bytes
    for category, name in enumerate(model.CATEGORIES):
        found.put("memory_category_bytes", held.get(category, 0), index,
                  "device", name)
    parts = walked.reserved_parts(last)
    found.shares(index, parts.total, {
        "rounding": walked.active.last() - walked.requested.last(),
        "stranded": parts.stranded, "releasable": parts.releasable,
        "pending": parts.pending})


def _of_events(found, run, walked):
    index = walked.index
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    ours = events["flags"] & (model.EVICTED | model.RESTORED) == 0
    allocs = (kinds == Kind.ALLOC) & ours
    for name, mask in (
            ("allocations", allocs),
            ("segment_maps", (kinds == Kind.SEGMENT_MAP)
             | (kinds == Kind.SEGMENT_ALLOC)),
            ("ooms", kinds == Kind.OOM),
            ("prefetch_late", kinds == Kind.LATE),
            ("stalls", kinds == Kind.STALL)):
        found.put(name, int(mask.sum()), index)
    found.put("allocated_bytes", sum(one.bytes for one in walked.churn()),
              index)
    # Events are of pieces where a block is partly away: the counter is not.
    frees = walked.device.since_start("allocation.all.freed")
    if frees is None:
        frees = int(((kinds == Kind.FREE_REQUESTED) & ours).sum()
                    + (kinds == Kind.FREED_AWAY).sum())
    found.put("frees", frees, index)
    retries = walked.device.since_start("num_alloc_retries")
    if retries is not None:
        found.put("alloc_retries", retries, index)
    found.put("stall_seconds",
              int(events["aux"][kinds == Kind.STALL].sum()) / 1e9, index)


def _of_moves(found, run, index):
    events = run.events
    ours = events[(events["kind"] == Kind.MOVE) & (events["device"] == index)]
    for category in np.unique(ours["category"]).tolist():
        some = ours[ours["category"] == category]
        found.moved(
            (index, *(model.TIERS[one] for one in model.ends(category))),
            len(some), int(some["bytes"].sum()), under_way(some))


def _of_modules(found, run, walked, most):
    held = {}
    for one in walked.holders(len(run.events) - 1):
        held[one.scope] = held.get(one.scope, 0) + one.bytes
    order = sorted(held, key=lambda scope: (-held[scope], scope))
    for i, scope in enumerate(order):
        found.add("module_allocated_bytes", held[scope], walked.index, "device",
                  run.scopes[scope] if i < most else "(other)")
