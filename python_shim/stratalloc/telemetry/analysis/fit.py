# SPDX-License-Identifier: Apache-2.0
"""fit(): would a run fit a card of another size?

Its blocks are placed anew by a model of the block heap (heap_model.py), in the
order of the events. What stands for the truth is what the program asked for and
gave back; where the blocks were on the recorded card does not matter, nor what
was evicted there. A private pool keeps its memory until the recording has it
give some back.
"""

import dataclasses

from stratalloc._page import Page
from stratalloc._result import Result
from stratalloc._table import Row, Table
from stratalloc.settings import format_size
from stratalloc.telemetry import model, replay
from stratalloc.telemetry.analysis.blocks_model import NO_OWNER
from stratalloc.telemetry.analysis.heap_model import HeapModel, NoRoomError
from stratalloc.telemetry.analysis.lines import line
from stratalloc.telemetry.model import Kind

POLICIES = ("none",)
_MOVED = model.EVICTED | model.RESTORED


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first request that would not be served; at the start: event -1."""

    event: int
    time_ns: int
    requested: int
    reserved: int  # bytes of handles then
    live: int  # bytes of blocks then
    scope: str
    site: str


class Fit(Result):
    """The verdict for one device.

    Attributes:
      fits: bool. device, capacity: int.
      peak_reserved: int, bytes of handles at most, up to the failure.
      peak_allocated: int, bytes of blocks at most, up to the failure.
      events: int, block events that were replayed.
      failure: Failure or None.
    """

    def __init__(self, device, capacity, policy, heap, peak, events, failure):
        self.device, self.capacity, self.policy = device, capacity, policy
        self.peak_reserved, self.peak_allocated = heap.most, peak
        self.events, self.failure = events, failure
        self.fits = failure is None

    def to_dict(self):
        return {"fits": self.fits, "device": self.device,
                "capacity": self.capacity, "policy": self.policy,
                "peak_reserved": self.peak_reserved,
                "peak_allocated": self.peak_allocated, "events": self.events,
                "failure": self.failure and dict(vars(self.failure))}

    def __bool__(self):
        return self.fits

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        said = (f"device {self.device} "
                f"{'fits' if self.fits else 'does not fit'} "
                f"{format_size(self.capacity)}")
        parts = [said, Table(("", "bytes"), [
            Row("allocated at most", (format_size(self.peak_allocated),)),
            Row("reserved at most", (format_size(self.peak_reserved),))])]
        if self.failure:
            one = self.failure
            parts.append(
                f"event {one.event}, {one.time_ns / 1e9:.3f} s: "
                f"{format_size(one.requested)} for "
                f"{one.scope or '(no scope)'}{one.site and ' at ' + one.site} "
                f"while {format_size(one.live)} lived in "
                f"{format_size(one.reserved)}")
        return Page(parts, depth, all, **how)


def fit(run, capacity, device=None, policy="none", handle=2 << 20,
        check=False):
    """Fit of one device.

    Args:
      capacity: bytes that the allocator would have.
      device: None: the one that held most.
      policy: "none": nothing leaves the device.
      handle: bytes of a handle.
      check: the heap is checked after every event; slow.

    Raises:
      ValueError: capacity, handle or policy cannot be.
    """
    if policy not in POLICIES:
        raise ValueError(f"stratalloc.fit: policy={policy!r} does not exist; "
                         f"use one of {', '.join(POLICIES)}")
    if not isinstance(handle, int) or handle < 512 or handle % 512:
        raise ValueError(f"stratalloc.fit: handle={handle!r} is no multiple "
                         "of 512 bytes")
    if not isinstance(capacity, int) or capacity < 0:
        raise ValueError(f"stratalloc.fit: capacity={capacity!r} is no number "
                         "of bytes")
    if device is None:
        device = max(replay.devices(run) or [0], key=lambda one: replay.Replay(
            run, one).allocated.most())
    heap = HeapModel(capacity, handle)
    program = _Program(run, heap, check)
    failure = program.begin(replay.Replay(run, device)) or program.go(device)
    return Fit(device, capacity, policy, heap, program.peak, program.replayed,
               failure)


class _Program:
    """The run's blocks, placed in a heap. `live`: bytes that are allocated."""

    def __init__(self, run, heap, check):
        self.run, self.heap, self._check = run, heap, check
        self._blocks = {}  # recorded address -> block of the heap
        self._away = {}  # address of what stayed of a block -> the block's
        self._pending = {}  # address -> whose end was asked for
        self._ended = set()  # private pools whose memory went back
        self.live = self.peak = self.replayed = 0

    def begin(self, walked):
        """What was there at the start; the Failure, or None."""
        rows = walked.rows[walked.live(replay.BEFORE, "done")]
        for row in rows:
            failure = self._allocate(
                -1, int(row["address"]), int(row["requested"]),
                int(row["pool"]), int(row["scope"]), int(row["site"]))
            if failure:
                return failure
            if row["asked"] == replay.BEFORE:
                self._ask(int(row["address"]))
        self.peak = self.live
        return None

    def go(self, device):
        """The events; the Failure, or None."""
        events = self.run.events
        ours = (events["device"] == device) & (
            (events["kind"] <= Kind.FREE_COMPLETED)
            | (events["kind"] == Kind.SEGMENT_UNMAP))
        columns = events[ours]
        at = ours.nonzero()[0].tolist()
        asked = None  # by the event before this one
        for event, kind, flags, address, size, pool, scope, site in zip(
                at, *(columns[name].tolist() for name in (
                    "kind", "flags", "address", "bytes", "pool", "scope",
                    "site"))):
            if kind == Kind.SEGMENT_UNMAP:
                self._end(self.run.pools[pool].owner)
                continue
            self.replayed += 1
            if flags & _MOVED:
                self._moved(kind, address)
            elif kind == Kind.ALLOC:
                failure = self._allocate(event, address, size, pool, scope,
                                         site)
                if failure:
                    return failure
            elif kind == Kind.FREE_REQUESTED:
                asked = address = self._away.get(address, address)
                self._ask(address)
            else:
                address = self._away.pop(address, address)
                self._free(address, at_once=asked == address)
            if self._check:
                self.heap.check()
        return None

    def _end(self, owner):
        """A private pool that gives memory back is in use no longer."""
        if owner != NO_OWNER:
            self._ended.add(owner)
            self.heap.kept.discard(owner)

    def _moved(self, kind, address):
        """An eviction or a restore: the block is where it is, and its end may
        be told of the part that stayed."""
        if kind != Kind.ALLOC or address in self._blocks:
            return
        for base, block in self._blocks.items():
            if base < address < base + block.size:
                self._away[address] = base
                return

    def _allocate(self, event, address, requested, pool, scope, site):
        self._free(address)  # what was evicted whole ends unheard
        of = self.run.pools[pool]
        if of.owner != NO_OWNER and of.owner not in self._ended:
            self.heap.kept.add(of.owner)
        try:
            block = self.heap.allocate((of.stream, of.owner), requested,
                                       self._wait)
        except NoRoomError:
            return Failure(
                event, int(self.run.events["time"][event]) if event >= 0 else 0,
                requested, self.heap.mapped, self.live,
                self.run.scopes[scope] if scope else "",
                line(self.run, site) if site else "")
        self._blocks[address] = block
        self.live += block.size
        self.peak = max(self.peak, self.live)
        return None

    def _ask(self, address):
        block = self._blocks.get(address)
        if block is not None and address not in self._pending:
            self._pending[address] = block
            self.live -= block.size

    def _free(self, address, at_once=False):
        block = self._blocks.pop(address, None)
        if block is None:
            return
        if self._pending.pop(address, None) is None:
            self.live -= block.size
        self.heap.free(block, at_once)

    def _wait(self):
        """Whoever is refused waits for streams; what they used comes free."""
        waited = list(self._pending)
        for address in waited:
            self._free(address)
        return bool(waited)
