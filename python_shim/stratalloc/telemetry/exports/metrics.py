# SPDX-License-Identifier: Apache-2.0
"""Metrics of a run, as families of samples: what Prometheus, OpenMetrics and
OpenTelemetry are told. Base units; labels are bounded (no addresses, scopes
only if they are asked for, and then the largest)."""

import dataclasses

import numpy as np

from stratalloc.telemetry import model, replay
from stratalloc.telemetry.exports.tiers import Tiers
from stratalloc.telemetry.model import Kind


@dataclasses.dataclass
class Family:
    """`name` without the prefix and, of counters, without `_total`."""

    name: str
    kind: str  # gauge, counter, info
    help: str
    labels: tuple
    samples: list = dataclasses.field(default_factory=list)

    def add(self, value, *labels):
        self.samples.append((tuple(map(str, labels)), value))


def families(run, modules=0):
    """[Family] of the state at the run's end.

    Args:
      modules: so many scopes of each device are told, the largest holders at
        the end; the rest is one, "(other)".
    """
    found = _Families()
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        _of_memory(found, run, walked)
        _of_events(found, run, walked)
        _of_moves(found, run, index)
        if modules:
            _of_modules(found, run, walked, modules)
    found.put("trace_events", "counter", "Events that were recorded.", (),
              len(run.events))
    found.put("trace_dropped", "counter", "Events that are missing: overwritten, "
              "of threads without a ring, or of unknown kinds.", (), run.dropped)
    found.put("trace_overhead_seconds", "counter", "Time that recording took, "
              "as far as it was measured.", (), run.overhead / 1e9)
    found.put("build_info", "gauge", "What ran.", ("version", "torch"), 1,
              *(run.about.get(key, "") for key in ("stratalloc", "torch")))
    return list(found.all.values())


class _Families:
    def __init__(self):
        self.all = {}

    def put(self, name, kind, what, labels, value, *said):
        family = self.all.setdefault(name, Family(name, kind, what, labels))
        family.add(value, *said)


def _of_memory(found, run, walked):
    index, last = walked.index, len(run.events) - 1
    for name in ("allocated", "requested", "active", "reserved"):
        found.put(f"memory_{name}_bytes", "gauge", f"Memory that is {name}.",
                  ("device", "tier"), getattr(walked, name).last(), index,
                  "device")
    for tier, size in Tiers(run, index).at(last).items():
        found.put("memory_allocated_bytes", "gauge", "", (), size, index, tier)
    found.put("memory_largest_free_block_bytes", "gauge", "The largest hole of "
              "what is reserved.", ("device", "tier"), max(
                  (block.size for one in replay.segments_at(walked, last)
                   for block in one.blocks if block.state == model.FREE),
                  default=0), index, "device")
    for name in ("allocated", "reserved"):
        found.put(f"memory_peak_{name}_bytes", "gauge",
                  f"The most that was {name}.", ("device",),
                  getattr(walked, name).most(), index)
    device = walked.device
    if device.capacity:
        found.put("memory_limit_bytes", "gauge", "Memory of the card.",
                  ("device", "tier"), device.capacity, index, "device")
    held = {}
    for one in walked.holders(last):
        held[one.category] = held.get(one.category, 0) + one.bytes
    for category, name in enumerate(model.CATEGORIES):
        found.put("memory_category_bytes", "gauge", "Allocated memory by "
                  "category.", ("device", "tier", "category"),
                  held.get(category, 0), index, "device", name)
    parts = walked.reserved_parts(last)
    for kind in ("rounding", "stranded", "releasable", "pending"):
        found.put("memory_fragmentation_ratio", "gauge", "Share of reserved "
                  "memory that holds nothing that was asked for.",
                  ("device", "kind"),
                  getattr(parts, kind) / parts.total if parts.total else 0.0,
                  index, kind)


def _of_events(found, run, walked):
    index = walked.index
    events = run.events[run.events["device"] == index]
    kinds = events["kind"]
    ours = events["flags"] & (model.EVICTED | model.RESTORED) == 0
    allocs = (kinds == Kind.ALLOC) & ours
    for name, mask, what in (
            ("allocations", allocs, "Blocks that were allocated."),
            ("segment_maps", (kinds == Kind.SEGMENT_MAP)
             | (kinds == Kind.SEGMENT_ALLOC), "Memory taken from the driver."),
            ("ooms", kinds == Kind.OOM, "Requests that could not be served."),
            ("prefetch_late", kinds == Kind.LATE, "Restores that were asked "
             "for ahead and waited for.")):
        found.put(name, "counter", what, ("device",), int(mask.sum()), index)
    found.put("allocated_bytes", "counter", "Bytes of blocks that were "
              "allocated, in all.", ("device",),
              sum(one.bytes for one in walked.churn()), index)
    # Events are of pieces where a block is partly away: the counter is not.
    frees = walked.device.since_start("allocation.all.freed")
    if frees is None:
        frees = int(((kinds == Kind.FREE_REQUESTED) & ours).sum()
                    + (kinds == Kind.FREED_AWAY).sum())
    found.put("frees", "counter", "Blocks whose end was asked for.",
              ("device",), frees, index)
    retries = walked.device.since_start("num_alloc_retries")
    if retries is not None:
        found.put("alloc_retries", "counter", "Requests that were tried again.",
                  ("device",), retries, index)
    found.put("stall_seconds", "counter", "Time that threads waited for "
              "memory.", ("device",), int(events["aux"][
                  kinds == Kind.STALL].sum()) / 1e9, index)


def _of_moves(found, run, index):
    events = run.events
    ours = events[(events["kind"] == Kind.MOVE) & (events["device"] == index)]
    for category in np.unique(ours["category"]).tolist():
        some = ours[ours["category"] == category]
        said = (index, *(model.TIERS[one] for one in model.ends(category)))
        labels = ("device", "source", "target")
        found.put("tier_moves", "counter", "Handles moved between tiers.",
                  labels, len(some), *said)
        found.put("tier_moved_bytes", "counter", "Bytes moved between tiers.",
                  labels, int(some["bytes"].sum()), *said)
        found.put("tier_move_seconds", "counter", "Time that moves took.",
                  labels, int(some["aux"].sum()) / 1e9, *said)


def _of_modules(found, run, walked, most):
    held = {}
    for one in walked.holders(len(run.events) - 1):
        held[one.scope] = held.get(one.scope, 0) + one.bytes
    order = sorted(held, key=lambda scope: (-held[scope], scope))
    rows = [(run.scopes[scope], held[scope]) for scope in order[:most]]
    if len(order) > most:
        rows.append(("(other)", sum(held[scope] for scope in order[most:])))
    for name, size in rows:
        found.put("module_allocated_bytes", "gauge", "Memory that scopes hold.",
                  ("device", "module"), size, walked.index, name)
