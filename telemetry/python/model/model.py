# SPDX-License-Identifier: Apache-2.0
"""Run: what one process did with memory, as everything in telemetry reads it.

Whoever reads a file (our recordings, torch's snapshots) makes a Run; whoever
writes or tells something takes one and nothing else.

Units: bytes, nanoseconds since `started`. Events are in the order in which they
happened; of one device's memory that order is exact. `time` never falls from one
event of a device to its next.

What must hold (identities.check()): replayed from `start`, the block events of a device
give `end`: the same blocks at the same addresses; segments likewise. Where
events were lost (`dropped`), or no end is known (a killed process), only what is
there can be checked. Bytes of blocks are the block's (`size`); what was asked
for is `requested`.
"""

from __future__ import annotations

import dataclasses
import enum

import numpy as np

# What the numbers of a recording stand for; the core's and the package's alike.
CATEGORIES = ("unknown", "parameter", "buffer", "gradient", "optimizer_state",
              "activation", "input", "temporary", "workspace")
TIERS = ("device", "host", "disk")


class Kind(enum.IntEnum):
    """Of an event; the numbers are those of the recording's format. The first
    nine are torch's TraceEntry actions."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8  # address: free bytes of the card; bytes: what was asked for
    SCOPE_ENTER = 9  # category: of what is allocated in it
    SCOPE_LEAVE = 10
    FREED_AWAY = 11  # the block that began at `address`, which is on no device
    MOVE = 12  # address, bytes: of the handle; category: move(); aux: duration
    STALL = 13  # the thread waited for memory of `scope`; aux: duration
    LATE = 14  # as STALL, but it is a stream that waits, for restores that were
    # asked for ahead; operands may come from several tiers, as their MOVEs say
    MARK = 15  # scope: the mark's name
    TOTALS = 16  # address: allocated bytes; bytes: reserved bytes of the device
    RELABEL = 17  # the block at `address` is owned by `scope`, `category` now
    DROPPED = 19  # address, bytes: of a handle that was away, and of which no
    # block is left; category: the tier that it was on


BLOCK_KINDS = (Kind.ALLOC, Kind.FREE_REQUESTED, Kind.FREE_COMPLETED)
SEGMENT_KINDS = (Kind.SEGMENT_ALLOC, Kind.SEGMENT_FREE, Kind.SEGMENT_MAP,
                 Kind.SEGMENT_UNMAP)


ACTIVE = "active_allocated"
PENDING = "active_pending_free"
FREE = "inactive"


def move(source, target):
    """`category` of a MOVE between two indices of TIERS."""
    return source * len(TIERS) + target


def ends(category):
    """(source, target) of a MOVE: what move() was given."""
    return divmod(category, len(TIERS))


# Flags of an event.
EVICTED = 1  # a free or an unmapping because bytes left the device
RESTORED = 2  # an allocation or a mapping because they returned
RECOMPUTES = 4
BACKWARD = 8  # a scope is entered or left for a node of its backward

EVENT = np.dtype([
    ("time", "<i8"),  # ns since Run.started
    ("address", "<u8"),
    ("bytes", "<u8"),  # of blocks: what was asked for, as torch's history
    ("aux", "<u8"),  # of blocks: the block's bytes; 0: not known
    ("scope", "<u4"),  # index of Run.scopes
    ("site", "<u4"),  # index of Run.sites; 0: not known
    ("pool", "<u2"),  # index of Run.pools
    ("thread", "<u2"),  # index of Run.threads
    ("kind", "u1"),
    ("category", "u1"),
    ("device", "u1"),
    ("flags", "u1"),
])


@dataclasses.dataclass(frozen=True)
class Site:
    """A line of user code, or a frame of a stack: `below` is the index of the
    frame that called it, 0 for none; `own` that of the user's line, where the
    recording says which it is."""

    file: str
    line: int
    function: str
    below: int = 0
    own: int = 0


@dataclasses.dataclass(frozen=True)
class Pool:
    """Where free blocks wait: of one stream, of one private pool or of none
    (0, 0)."""

    device: int
    stream: int
    owner: tuple = (0, 0)


@dataclasses.dataclass(frozen=True)
class Block:
    """Of a segment. `state` is torch's word: active_allocated,
    active_pending_free, inactive."""

    address: int
    size: int
    requested: int
    state: str = "active_allocated"
    scope: int = 0
    category: int = 0
    site: int = 0
    tier: int = 0  # index of TIERS
    time: int = 0  # when it was allocated, if that is known


@dataclasses.dataclass(frozen=True)
class Segment:
    """A span of addresses of one pool; its blocks are in order of address and
    cover it without a gap."""

    address: int
    size: int
    pool: int
    expandable: bool = False
    small: bool = False
    blocks: tuple = ()


@dataclasses.dataclass(frozen=True)
class Older:
    """What a device had before its first event, where no start is recorded:
    blocks, their bytes, and bytes of segments."""

    blocks: int
    bytes: int
    reserved: int


@dataclasses.dataclass
class Device:
    """One card: what it had at the start and at the end of what is recorded.

    `start`, `end`: segments, or None where that is not known. `stats`: the
    allocator's own counters at the end (torch.cuda.memory_stats' keys),
    `capacity` the card's bytes; 0 where they are not known. `before`: the same
    counters at the start. `regions`: (address, bytes, bytes of a handle), where
    memory is given back by how much; 2 MiB elsewhere. `tier`: index of
    TIERS; above 0 it is no card but what all cards have on that tier, which a
    snapshot of ours lists among the devices. What gaps.py decides by: `older`;
    `ring`: entries of torch's ring, if it is full and older events are lost;
    `unrecorded`: it has no events; `unmatched`: blocks without their end.
    """

    index: int
    name: str = ""
    capacity: int = 0
    start: tuple | None = ()
    end: tuple | None = None
    stats: dict = dataclasses.field(default_factory=dict)
    tier: int = 0
    before: dict = dataclasses.field(default_factory=dict)
    regions: tuple = ()
    older: Older | None = None
    ring: int = 0
    unrecorded: bool = False
    unmatched: int = 0

    def since_start(self, name):
        """How much one of `stats` rose, or None where that is not known."""
        if name not in self.stats or self.start is None:
            return None
        return self.stats[name] - self.before.get(name, 0)


@dataclasses.dataclass(repr=False)
class Run:
    """What one process did with memory, as a recording or a snapshot has it.

    Index 0 of `scopes`, `sites` and `pools` is "none". Bytes and nanoseconds are
    ints.

    Attributes:
      source: "stratalloc" or "torch".
      started: nanoseconds since 1970.
      duration: nanoseconds.
      about: versions, and the command.
      settings: of the allocator, by name.
      devices: list of Device.
      scopes: names of scopes.
      classes: index of a scope -> name of its module's class.
      sites: list of Site, lines of user code and frames of stacks.
      pools: list of Pool.
      threads: names of threads.
      events: an array of EVENT, in the order in which they happened.
      level: the telemetry level of the recording.
      dropped: events that are missing: overwritten, without a ring, unknown.
      left_out: of those: older than what the writer of this run keeps.
      complete_from: nanoseconds since `started`; from then on none is missing.
      names_lost: how many have a number in place of a name.
      stacks_lost: allocations of which the line alone is known.
      owners_said: its events say each change of a block's owner.
      torn: recovered from a process that did not end by itself.
      overhead: nanoseconds that recording took, as far as it was measured.
      redacted: names are numbers.
      ignored: unknown actions of a snapshot, and how many.
      converted: gaps of the recording that the file was made of.
      host_segments: of pinned memory, which is in no answer.
      host_bytes: bytes of these.
    """

    source: str = "stratalloc"
    started: int = 0
    duration: int = 0
    about: dict = dataclasses.field(default_factory=dict)
    settings: dict = dataclasses.field(default_factory=dict)
    devices: list = dataclasses.field(default_factory=list)
    scopes: list = dataclasses.field(default_factory=lambda: ["(no scope)"])
    classes: dict = dataclasses.field(default_factory=dict)
    sites: list = dataclasses.field(
        default_factory=lambda: [Site("", 0, "(not known)")])
    pools: list = dataclasses.field(
        default_factory=lambda: [Pool(0, 0)])
    threads: list = dataclasses.field(default_factory=lambda: ["main"])
    events: np.ndarray = dataclasses.field(
        default_factory=lambda: np.empty(0, EVENT))
    level: str = "events"
    dropped: int = 0
    left_out: int = 0
    complete_from: int = 0
    names_lost: int = 0
    stacks_lost: int = 0
    owners_said: bool = False
    torn: bool = False
    overhead: int = 0
    redacted: bool = False
    ignored: dict = dataclasses.field(default_factory=dict)
    converted: str = ""
    host_segments: int = 0
    host_bytes: int = 0

    def __repr__(self):
        """A line, whatever it holds; analysis.summary() tells more."""
        devices = ", ".join(str(one.index) for one in self.devices)
        return (f"<Run of {self.source}: {len(self.events)} events of "
                f"{self.duration / 1e9:.3f} s, level {self.level}, devices "
                f"[{devices}], {self.dropped} events dropped>")

    def device(self, index: int) -> Device | None:
        """The Device, or None."""
        return next((one for one in self.devices if one.index == index), None)

    def stack(self, site: int) -> list[Site]:
        """The Sites of a site, innermost first; none for 0. A loop of `below`
        ends where it would begin again."""
        found, seen = [], set()
        while 0 < site < len(self.sites) and site not in seen:
            seen.add(site)
            found.append(self.sites[site])
            site = self.sites[site].below
        return found
