# SPDX-License-Identifier: Apache-2.0
"""fit(): would a run fit a card of another size?

Its blocks are placed anew by a model of the block heap (heap_model.py), in the
order of the events. What stands for the truth is what the program asked for and
gave back; where the blocks were on the recorded card does not matter, nor what
was evicted there. A private pool keeps its memory until the recording has it
give some back.

What does not fit so may with some of it away: tiers_model.py estimates what would
leave and come back, and how long that takes.

Where the run has gaps (gaps.py), it is not known whether the program fits, unless
what is recorded is too much already.
"""

import dataclasses

import numpy as np

from stratalloc._rendering.page import Page
from stratalloc._rendering.result import Result
from stratalloc._rendering.table import Row, Table
from stratalloc.sizes import format_size
from stratalloc.telemetry import gaps, lifetimes, model, replay
from stratalloc.telemetry.analysis import tiers_model, traffic
from stratalloc.telemetry.analysis.blocks_model import NO_OWNER
from stratalloc.telemetry.analysis.heap_model import HeapModel, NoRoomError
from stratalloc.telemetry.analysis.lines import line
from stratalloc.telemetry.analysis.uses_model import uses
from stratalloc.telemetry.model import Kind

POLICIES = ("none", *tiers_model.POLICIES)
# Pinned memory over PCIe 4 x16, of 31.5 GB/s in the standard.
BANDWIDTH = 24e9
_ROOM = 1 << 50  # bytes, more than any card has
_REFUSED = -1  # no recorded address
_MOVED = model.EVICTED | model.RESTORED


@dataclasses.dataclass(frozen=True)
class Failure:
    """The first request that would not be served."""

    event: int  # -1: a block that was there at the start
    time_ns: int
    requested: int
    reserved: int  # bytes of handles then
    live: int  # bytes of blocks then
    scope: str
    site: str


@dataclasses.dataclass(frozen=True)
class Moves:
    """What leaves the device and comes back in the whole run.

    `clean` of the evicted bytes need no copy; `count`: of handles.
    `bandwidth`: (out, back), bytes per second of either direction. `seconds`:
    what the run takes longer if every copy is hidden behind other work, and if
    none is; `slower`: by which factor, 0 where the recording does not know how
    long it took.
    """

    evicted: int
    restored: int
    clean: int
    count: int
    bandwidth: tuple
    seconds: tuple
    slower: tuple


class Fit(Result):
    """The verdict for one device.

    Attributes:
      fits: bool, or None where it is not known. device, capacity: int.
      missing: str, why it is not known, or is without a failure; else "".
      peak_reserved: int, bytes of handles at most, up to the failure.
      peak_allocated: int, bytes of blocks at most, up to the failure.
      events: int, block events that were replayed.
      failure: Failure or None.
      granted: (Failure), requests that the recorded run was refused and that
        have room here: what the run would have done then, nobody recorded.
      moves: Moves, or None with policy "none".
    """

    def __init__(self, device, capacity, policy, program, failure):
        self.device, self.capacity, self.policy = device, capacity, policy
        self.peak_reserved = program.heap.most
        self.peak_allocated, self.events = program.peak, program.replayed
        self.failure, self.fits = failure, failure is None
        self.missing = ""
        self.granted = tuple(program.granted)
        self.moves = None

    def to_dict(self):
        return {"fits": self.fits, "missing": self.missing,
                "device": self.device,
                "capacity": self.capacity, "policy": self.policy,
                "peak_reserved": self.peak_reserved,
                "peak_allocated": self.peak_allocated, "events": self.events,
                "failure": self.failure and dict(vars(self.failure)),
                "granted": [dict(vars(one)) for one in self.granted],
                "moves": self.moves and dict(vars(self.moves))}

    def __bool__(self):
        return bool(self.fits)

    def _page(self, depth=None, all=False, **how):  # noqa: A002
        size = format_size(self.capacity)
        said = (f"device {self.device}: not known whether it fits {size}: "
                f"{self.missing}" if self.fits is None else
                f"device {self.device} "
                f"{'fits' if self.fits else 'does not fit'} {size}"
                f"{self.missing and ': '}{self.missing}")
        parts = [said, Table(("", "bytes"), [
            Row("allocated at most", (format_size(self.peak_allocated),)),
            Row("reserved at most", (format_size(self.peak_reserved),))])]
        if self.moves:
            parts.append(_said(self.moves))
        if self.failure:
            one = self.failure
            parts.append(
                f"{_asked(one)}{one.site and ' at ' + one.site} while "
                f"{format_size(one.live)} lived in {format_size(one.reserved)}")
        if self.granted:
            more = len(self.granted) - 1
            parts.append(
                f"the recorded run was refused memory: "
                f"{_asked(self.granted[0])}"
                f"{f', and {more} more requests' if more else ''}; here there is "
                "room, and what it would have done then is not recorded")
        return Page(parts, depth, all, **how)


def _asked(one):
    """When, how much, and for whom, which a policy does not know of what was
    there at the start."""
    size = format_size(one.requested)
    if one.event == replay.BEFORE:
        return (f"at the start, before the first event: {size}"
                f"{one.scope and ' for ' + one.scope}")
    return (f"event {one.event}, {one.time_ns / 1e9:.3f} s: {size} for "
            f"{one.scope or '(no scope)'}")


def _said(moves):
    if not moves.count:
        return "nothing has to leave"
    text = (f"about {format_size(moves.evicted)} leave and "
            f"{format_size(moves.restored)} come back, in {moves.count} moves: "
            f"{moves.seconds[0]:.3g} to {moves.seconds[1]:.3g} s more at "
            f"{_speeds(*moves.bandwidth)}")
    return text + (f", {moves.slower[0]:.2f} to {moves.slower[1]:.2f} times "
                   "as long" if moves.slower[1] else "")


def _speeds(out, back):
    if out == back:
        return f"{out / 1e9:.3g} GB/s"
    return f"{out / 1e9:.3g} GB/s out and {back / 1e9:.3g} GB/s back"


def fit(run, capacity, device=None, policy="none", bandwidth=None,
        handle=2 << 20, check=False):
    """Fit of one device.

    Args:
      capacity: bytes that the allocator would have.
      device: None: the one that held most.
      policy: "none": nothing leaves the device. "tiering": the allocator's own,
        with default settings; an estimate. "oracle": whoever is used last
        leaves, which nobody can know.
      bandwidth: bytes per second of copies, 1 or more. None: of each direction
        that of the recording's own moves, or else BANDWIDTH.
      handle: bytes of a handle.
      check: the heap is checked after every event; slow.

    Raises:
      ValueError: capacity, handle, bandwidth or policy cannot be.
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
    if bandwidth is not None and not 1 <= bandwidth < float("inf"):
        raise ValueError(f"stratalloc.fit: bandwidth={bandwidth!r} is no number "
                         "of bytes per second, of which 1 is the least")
    walked = (replay.busiest(run) if device is None
              else replay.Replay(run, device))
    found = _placed(run, walked, capacity, policy, handle, check)
    if policy != "none":
        _tier(found, run, walked, handle, (bandwidth, bandwidth) if bandwidth
              else _measured(run, walked.index))
    _doubt(found, run, walked, handle)
    return found


def _doubt(found, run, walked, handle):
    """The verdict on a run with gaps: fits becomes None unless it is certain."""
    room = found.capacity // handle * handle
    doubts = [one for one in gaps.gaps(run, walked.index, walked)
              if one.reserved is None or one.reserved > room]
    if not doubts:
        return
    sure = found.policy == "none" and _surely(run, walked) > room
    if sure or found.fits or found.policy == "none":
        found.fits = False if sure else None
    if found.fits is None or found.failure is None:
        found.missing = "; ".join(one.text for one in doubts)


def _surely(run, walked):
    """Bytes that the program had at some moment at least, whatever is missing."""
    last, rows, device = len(run.events), walked.rows, walked.device
    sizes = lifetimes.rounded(rows["requested"])
    before = device.before.get("allocated_bytes.all.peak", 0)
    if run.ignored or device.unmatched:  # any of what is missing may be a free
        return max(before, int(sizes.max(initial=0)))
    kinds = np.append(run.events["kind"], [Kind.ALLOC])
    there = [block.address for block in replay.blocks(device.end or ())]
    # A block without an end of its own may have ended long before.
    sure = np.isin(kinds[rows["asked"]],
                   [Kind.FREE_REQUESTED, Kind.FREE_COMPLETED])
    if device.end is not None or run.dropped:
        sure |= (rows["asked"] == last) & np.isin(
            rows["address"], np.array(there, "<u8"))
    else:
        sure |= rows["asked"] == last
    changes = np.zeros(last + 2, "<i8")
    np.add.at(changes, rows["begin"][sure] + 1, sizes[sure])
    np.add.at(changes, rows["asked"][sure] + 1, -sizes[sure])
    first = 0  # the moment from which on no event is missing
    if run.dropped:
        lacking = np.flatnonzero(run.events["time"] < run.complete_from)
        first = 2 + int(lacking[-1]) if len(lacking) else 1
    return max(before, int(np.cumsum(changes)[first:].max(initial=0)))


def _placed(run, walked, capacity, policy, handle, check, room=None):
    """`room`: what all blocks have together, if each fits the capacity."""
    heap = HeapModel(room or capacity, handle, capacity)
    program = _Program(run, heap, check)
    failure = program.begin(walked) or program.go(walked.index)
    return Fit(walked.index, capacity, policy, program, failure)


def _measured(run, index):
    """(out, back) of the device's own moves; of what it did not move those of
    the other devices, or else BANDWIDTH."""
    ours, all_ = traffic.rates(run, index), traffic.rates(run)
    return tuple(one or other or BANDWIDTH for one, other in zip(ours, all_))


def _tier(found, run, walked, handle, bandwidth):
    """What does not fit, with some of it away. A job that fits moves nothing."""
    tiers = tiers_model.TiersModel(found.capacity, found.policy, handle=handle)
    if not found.fits:
        # Holes are as large a share as with room for all.
        whole = _placed(run, walked, found.capacity, found.policy, handle,
                        False, _ROOM)
        used = (whole.peak_allocated / whole.peak_reserved
                if whole.peak_reserved else 1.)  # its first block is too large
        tiers = tiers_model.TiersModel(found.capacity, found.policy, used,
                                       handle)
        tiers.go(uses(run, walked))
        found.peak_reserved = min(whole.peak_reserved,
                                  found.capacity // handle * handle)
        found.peak_allocated, found.events = tiers.most, whole.events
        found.failure = tiers.refused and _failure(
            run, *tiers.refused, found.peak_reserved)
        found.fits = found.failure is None
    out, back = bandwidth
    seconds = (tiers.evicted - tiers.clean) / out + tiers.restored / back
    took = run.duration / 1e9
    found.moves = Moves(
        tiers.evicted, tiers.restored, tiers.clean,
        -(-(tiers.evicted + tiers.restored) // handle), bandwidth,
        (0., seconds), (1., 1. + seconds / took) if took > 0 else (0., 0.))


def _failure(run, event, requested, live, reserved):
    if event < 0:
        return Failure(event, 0, requested, reserved, live, "", "")
    one = run.events[event]
    scope, site = int(one["scope"]), int(one["site"])
    return Failure(event, int(one["time"]), requested, reserved, live,
                   run.scopes[scope] if scope else "",
                   line(run, site) if site else "")


class _Program:
    """The run's blocks, placed in a heap. `live`: bytes that are allocated."""

    def __init__(self, run, heap, check):
        self.run, self.heap, self._check = run, heap, check
        self._blocks = {}  # recorded address -> block of the heap
        self._away = {}  # address of what stayed of a block -> the block's
        self._pending = {}  # address -> whose end was asked for
        self._ended = set()  # private pools whose memory went back
        self.granted = []
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
            | (events["kind"] == Kind.FREED_AWAY)
            | (events["kind"] == Kind.OOM)
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
            if kind == Kind.OOM:
                failure = self._try_again(event, size, pool, scope, site)
                if failure:
                    return failure
                continue
            self.replayed += 1
            if flags & _MOVED:
                self._moved(kind, address)
            elif kind == Kind.ALLOC:
                failure = self._allocate(event, address, size, pool, scope,
                                         site)
                if failure:
                    return failure
            elif kind == Kind.FREED_AWAY:
                self._ask(address)
                self._free(address, at_once=True)
            elif kind == Kind.FREE_REQUESTED:
                asked = address = self._away.get(address, address)
                self._ask(address)
            else:
                address = self._away.pop(address, address)
                self._free(address, at_once=asked == address)
            if self._check:
                self.heap.check()
        return None

    def _try_again(self, event, requested, pool, scope, site):
        """What the recorded run was refused: the Failure where it is refused
        here, too."""
        failure = self._allocate(event, _REFUSED, requested, pool, scope, site)
        if failure is None:
            self.granted.append(_failure(self.run, event, requested,
                                         self.live, self.heap.mapped))
            self._ask(_REFUSED)
            self._free(_REFUSED, at_once=True)
        return failure

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
        self._free(address)  # its end was lost
        self._away.pop(address, None)  # what stayed there is of the past
        of = self.run.pools[pool]
        if of.owner != NO_OWNER and of.owner not in self._ended:
            self.heap.kept.add(of.owner)
        try:
            block = self.heap.allocate((of.stream, of.owner), requested,
                                       self._wait)
        except NoRoomError:
            found = _failure(self.run, event, requested, self.live,
                             self.heap.mapped)
            return dataclasses.replace(
                found, scope=self.run.scopes[scope] if scope else "",
                site=line(self.run, site) if site else "")
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
