# SPDX-License-Identifier: Apache-2.0
"""The names of our metrics: one table, for a process that runs and for
recordings, so that a dashboard fits both.

Base units. Labels are bounded: no addresses and no processes, and of scopes
those that hold most. Whoever tells gives samples by a name of the table
(`Families`); what becomes of them is the exporters'. Standard library only.
"""

import dataclasses
import typing

from stratalloc.telemetry.exports.target import text

BOTH, LIVE, RECORDED = "both", "a process", "a recording"


class Named(typing.NamedTuple):
    """`kind`: gauge or counter; a counter's name is told with `_total`."""

    kind: str
    labels: tuple
    of: str  # who tells it
    help: str


_DEVICE, _TIER = ("device",), ("device", "tier")
_WAY = ("device", "source", "target")

NAMES = {
    "memory_allocated_bytes": Named(
        "gauge", _TIER, BOTH, "Blocks that are allocated, by where their bytes "
        "lie; a recording knows those on the device."),
    "memory_requested_bytes": Named(
        "gauge", _TIER, BOTH, "What was asked for, of blocks that are active."),
    "memory_active_bytes": Named(
        "gauge", _TIER, BOTH, "Blocks that are allocated, or freed and still "
        "used by a stream."),
    "memory_reserved_bytes": Named(
        "gauge", _TIER, BOTH, "Memory that is taken from the driver."),
    "memory_peak_allocated_bytes": Named(
        "gauge", _DEVICE, BOTH, "The most that was allocated on the device, "
        "since the start or the last reset of peaks."),
    "memory_peak_reserved_bytes": Named(
        "gauge", _DEVICE, BOTH, "The most that was reserved, since the start "
        "or the last reset of peaks."),
    "memory_largest_free_block_bytes": Named(
        "gauge", _TIER, BOTH, "The largest hole of what is reserved."),
    "memory_capacity_bytes": Named(
        "gauge", _DEVICE, BOTH, "Memory of the card."),
    "memory_limit_bytes": Named(
        "gauge", _TIER, LIVE, "What reserved memory may reach: by the settings, "
        "and once the card has refused memory by what it has."),
    "memory_category_bytes": Named(
        "gauge", ("device", "tier", "category"), BOTH, "Blocks that are "
        "allocated, by what they are."),
    "memory_fragmentation_ratio": Named(
        "gauge", ("device", "kind"), BOTH, "Share of reserved memory that holds "
        "nothing that was asked for: rounding of active blocks; stranded beside "
        "live blocks in their handles; releasable, free as a whole; pending on "
        "other streams."),
    "module_allocated_bytes": Named(
        "gauge", ("device", "tier", "module"), BOTH, "Blocks that scopes own: "
        "the largest by name, the rest as (other)."),
    "modules": Named(
        "gauge", _DEVICE, LIVE, "Scopes that ever owned memory."),
    "tier_bytes": Named(
        "gauge", _TIER, BOTH, "Handles, whole, whose bytes lie on a tier below "
        "the device."),
    "tier_limit_bytes": Named(
        "gauge", ("tier",), LIVE, "What may lie on a tier below the devices."),
    "tier_used_bytes": Named(
        "gauge", ("tier",), LIVE, "Pinned memory that copies of all devices "
        "use."),
    "tier_reserved_bytes": Named(
        "gauge", ("tier",), LIVE, "Memory that is pinned for copies."),
    "tier_moves": Named(
        "counter", _WAY, BOTH, "Handles that moved between tiers."),
    "tier_moved_bytes": Named(
        "counter", _WAY, BOTH, "Bytes that moved between tiers."),
    "tier_move_seconds": Named(
        "counter", _WAY, BOTH, "Time in which at least one such move was "
        "under way."),
    "stalls": Named(
        "counter", _DEVICE, BOTH, "Times that a thread waited for memory."),
    "stall_seconds": Named(
        "counter", _DEVICE, BOTH, "Time that threads waited for memory, "
        "added up over threads."),
    "prefetch_late": Named(
        "counter", _DEVICE, BOTH, "Restores that were asked for ahead and "
        "waited for."),
    "allocations": Named(
        "counter", _DEVICE, BOTH, "Blocks that were allocated."),
    "allocated_bytes": Named(
        "counter", _DEVICE, BOTH, "Bytes of blocks that were allocated, in "
        "all."),
    "frees": Named(
        "counter", _DEVICE, BOTH, "Blocks whose end was asked for."),
    "segment_maps": Named(
        "counter", _DEVICE, RECORDED, "Ranges of addresses that got memory."),
    "driver_allocations": Named(
        "counter", _DEVICE, LIVE, "Pieces of memory that were taken from the "
        "driver."),
    "ooms": Named(
        "counter", _DEVICE, BOTH, "Requests that could not be served."),
    "alloc_retries": Named(
        "counter", _DEVICE, BOTH, "Requests that were tried again."),
    "trace_events": Named(
        "counter", (), BOTH, "Events that were recorded."),
    "trace_dropped": Named(
        "counter", (), BOTH, "Events that are missing: overwritten, of threads "
        "without a ring, or of unknown kinds."),
    "trace_names_lost": Named(
        "counter", (), BOTH, "Names of layers, lines and pools for which the "
        "rings had no room."),
    "trace_stacks_lost": Named(
        "counter", (), BOTH, "Allocations whose line is known alone, since no "
        "number was left for their stack."),
    "trace_overhead_seconds": Named(
        "counter", (), RECORDED, "Time that recording took, as far as it was "
        "measured."),
    "build_info": Named(
        "gauge", ("version", "torch"), BOTH, "What ran."),
}


@dataclasses.dataclass
class Family:
    """`name` without the prefix and, of counters, without `_total`."""

    name: str
    kind: str
    help: str
    labels: tuple
    samples: list = dataclasses.field(default_factory=list)


class Families:
    """What is told, in the order of its first samples."""

    def __init__(self, rank=None):
        """rank: of a process among others, a label of every sample."""
        self._told = {}  # name -> {labels: value}
        self._rank = {} if rank is None else {"rank": str(rank)}

    def put(self, name, value, *labels):
        """A sample of a name of the table, with its labels in their order."""
        samples, said = self._samples(name, labels)
        assert said not in samples, (name, said)
        samples[said] = value

    def add(self, name, value, *labels):
        """As put(), to what was told with the same labels: a scope may be
        called as the rest of them is, and several may be one where their names
        are cut."""
        samples, said = self._samples(name, labels)
        samples[said] = samples.get(said, 0) + value

    def shares(self, device, reserved, sizes):
        """{kind: bytes} of what is reserved and holds nothing, as shares."""
        for kind, size in sizes.items():
            self.put("memory_fragmentation_ratio",
                     size / reserved if reserved else 0.0, device, kind)

    def moved(self, way, moves, size, ns):
        """Of a way, (device, source, target): handles, bytes, nanoseconds."""
        self.put("tier_moves", moves, *way)
        self.put("tier_moved_bytes", size, *way)
        self.put("tier_move_seconds", ns / 1e9, *way)

    def _samples(self, name, labels):
        assert len(labels) == len(NAMES[name].labels), name
        return (self._told.setdefault(name, {}),
                (*(text(str(one)) for one in labels), *self._rank.values()))

    def all(self):
        return [Family(name, NAMES[name].kind, NAMES[name].help,
                       (*NAMES[name].labels, *self._rank),
                       list(samples.items()))
                for name, samples in self._told.items()]
