# SPDX-License-Identifier: Apache-2.0
"""check(run): which identity of the allocator's books a run violates.

    requested <= active; allocated <= active <= reserved, after every event;
    allocated + pending + releasable + stranded = reserved;
    rounding = block sizes - requested sizes, none negative;
    replayed from the start, the events give the end and the counters;
    blocks of a segment cover it, in order, without a gap;
    scopes of a thread are left in the order in which they were entered.

Where events were dropped or the end is not known, what needs them is not
checked; totals are from Run.complete_from on.
"""

import dataclasses

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.replay import Replay, blocks, devices

_MOST = 20  # violations told of one identity of one device


@dataclasses.dataclass(frozen=True)
class Violation:
    """`event`: index of the run's events, or None."""

    identity: str
    device: int | None
    event: int | None
    what: str

    def __str__(self):
        where = "" if self.device is None else f"device {self.device}: "
        when = "" if self.event is None else f" (event {self.event})"
        return f"{where}{self.identity}: {self.what}{when}"


def check(run):
    """[Violation], of each identity the first ones; none: all hold."""
    found = list(indices(run))
    if found:
        return found  # what follows would look them up
    found += _nesting(run)
    for index in devices(run):
        device = run.device(index)
        for name in ("start", "end"):
            segments = getattr(device, name, None) if device else None
            for what in _layout(segments or ()):
                found.append(Violation("segments", index, None,
                                       f"at the {name} {what}"))
        found += _device(run, index)
    return found


def indices(run):
    """Violations of what every other reader of a Run takes for granted: names
    that are named exist. Whoever reads a file of anybody's asks first."""
    events = run.events
    for name, table in (("scope", run.scopes), ("site", run.sites),
                        ("pool", run.pools), ("thread", run.threads),
                        ("category", model.CATEGORIES)):
        column = events[name]
        if name == "category":
            moved = events["kind"] == Kind.MOVE
            if (column[moved] >= len(model.TIERS) ** 2).any():
                yield Violation("indices", None, None,
                                "a move is between tiers that do not exist")
            dropped = events["kind"] == Kind.DROPPED
            if (column[dropped] >= len(model.TIERS)).any():
                yield Violation("indices", None, None,
                                "bytes are dropped on a tier that does not exist")
            column = column[~moved & ~dropped]
        if len(column) and column.max() >= len(table):
            yield Violation("indices", None, None, (
                f"{name} {int(column.max())} is named and there are "
                f"{len(table)}"))
    for device in run.devices:
        for one in (*(device.start or ()), *(device.end or ())):
            if not 0 <= one.pool < len(run.pools) or not all(
                    0 <= index < size for block in one.blocks
                    for index, size in (
                        (block.scope, len(run.scopes)),
                        (block.site, len(run.sites)),
                        (block.category, len(model.CATEGORIES)),
                        (block.tier, len(model.TIERS)))):
                yield Violation("indices", device.index, None, (
                    f"segment {one.address:#x} names what does not exist"))
                break
    if len(events) and events["kind"].max() > max(Kind):
        yield Violation("indices", None, int(events["kind"].argmax()),
                        f"kind {int(events['kind'].max())} is not known")


def _nesting(run):
    kinds = run.events["kind"]
    at = np.flatnonzero((kinds == Kind.SCOPE_ENTER)
                        | (kinds == Kind.SCOPE_LEAVE))
    open_ones, told = {}, 0
    ours = run.events[at]
    for event, thread, kind, scope in zip(
            at.tolist(), ours["thread"].tolist(), ours["kind"].tolist(),
            ours["scope"].tolist()):
        stack = open_ones.setdefault(thread, [])
        if kind == Kind.SCOPE_ENTER:
            stack.append(scope)
        elif stack and stack[-1] == scope:
            stack.pop()
        elif stack:  # else it was entered before the recording began
            told += 1
            if told <= _MOST:
                yield Violation("nesting", None, event, (
                    f"thread {thread} leaves scope {scope} and is in "
                    f"{stack[-1]}"))


def _layout(segments):
    reached = None
    for one in sorted(segments, key=lambda one: one.address):
        if reached is not None and one.address < reached:
            yield f"segment {one.address:#x} overlaps the one below it"
        reached = one.address + one.size
        at = one.address
        for block in one.blocks:
            if block.tier:
                continue
            if block.address != at:
                yield (f"segment {one.address:#x} has block "
                       f"{block.address:#x} where {at:#x} is next")
            if not 0 <= block.requested <= block.size:
                yield (f"block {block.address:#x} of {block.size} bytes was "
                       f"asked for {block.requested}")
            at = block.address + block.size
        if at != reached:
            yield (f"the blocks of segment {one.address:#x} end at {at:#x}, "
                   f"it ends at {reached:#x}")


def _before_all_is_there(run, event):
    """Whether events may be missing that would explain it."""
    return run.dropped and (
        event < 0 or run.events["time"][event] < run.complete_from)


def _device(run, index):
    replay = Replay(run, index)
    found = [Violation("events", index, fault.event, fault.what)
             for fault in replay.faults
             if not _before_all_is_there(run, fault.event)][:_MOST]

    def broken(identity, mask, what):
        for at in np.flatnonzero(mask)[:_MOST]:
            found.append(Violation(identity, index, int(at), what(at)))

    def curves(identity, low, high):
        one, two = getattr(replay, low), getattr(replay, high)
        if one.base > two.base:
            found.append(Violation(identity, index, None, (
                f"at the start {low} is {one.base}, {high} {two.base}")))
        broken(identity, one.after > two.after, lambda at: (
            f"{low} is {int(one.after[at])}, {high} {int(two.after[at])}"))

    curves("requested <= active", "requested", "active")
    curves("allocated <= active", "allocated", "active")
    if replay.anchored:
        curves("active <= reserved", "active", "reserved")
        found += _parts(replay, index)
    if run.device(index) and run.device(index).end is not None:
        found += _against_end(replay, index)
        if replay.anchored:
            found += _against_stats(replay, index)
    if replay.anchored:
        found += _against_totals(replay, index)
    return found


def _parts(replay, index):
    for moment in (replay.peak, len(replay.run.events) - 1):
        parts = replay.reserved_parts(moment)
        if parts.rounding < 0:
            yield Violation("rounding", index, None,
                            f"blocks are smaller than what was asked for by "
                            f"{-parts.rounding} bytes")
        if (parts.allocated + parts.pending + parts.releasable
                + parts.stranded != replay.reserved.at(moment)):
            yield Violation("parts of reserved", index, None, (
                f"{parts} where {replay.reserved.at(moment)} is reserved"))


def _against_end(replay, index):
    last = len(replay.run.events)
    rows = replay.rows[replay.live(last - 1, "done")]
    there = {block.address: block for block in blocks(replay.device.end)
             if block.tier == 0}
    told = 0
    for row in rows:
        block = there.pop(int(row["address"]), None)
        state = model.ACTIVE if row["asked"] >= last else model.PENDING
        what = None
        if block is None:
            what = "lives by the events, and is not there at the end"
        elif block.state != state:
            what = f"is {state} by the events, {block.state} at the end"
        elif block.requested != row["requested"]:
            what = (f"was asked for {int(row['requested'])} bytes by the "
                    f"events, {block.requested} at the end")
        elif block.size != row["size"]:
            what = (f"has {int(row['size'])} bytes by the events, "
                    f"{block.size} at the end")
        if what and told < _MOST:
            told += 1
            yield Violation("events give the end", index, None,
                            f"block {int(row['address']):#x} {what}")
    for address in list(there)[:_MOST]:
        yield Violation("events give the end", index, None, (
            f"block {address:#x} is there at the end, and no event began it"))
    reserved = sum(one.size for one in replay.device.end)
    if replay.reserved.last() != reserved:
        yield Violation("events give the end", index, None, (
            f"{replay.reserved.last()} bytes are reserved by the events, "
            f"{reserved} at the end"))
    ranges = replay.ranges(last - 1)
    if ranges.faults:
        yield Violation("segments", index, None, (
            f"{ranges.faults} events of segments take what is not there, or "
            "add what is"))


_COUNTERS = (("allocated_bytes.all.current", "allocated"),
             ("active_bytes.all.current", "active"),
             ("requested_bytes.all.current", "requested"),
             ("reserved_bytes.all.current", "reserved"))


def _against_stats(replay, index):
    for key, name in _COUNTERS:
        said = replay.device.stats.get(key)
        curve = getattr(replay, name)
        if said is not None and said != curve.last():
            yield Violation("counters", index, None, (
                f"{key} is {said}, {curve.last()} by the events"))
        peak = replay.device.stats.get(key.replace("current", "peak"))
        if peak is not None and peak < curve.last():
            yield Violation("counters", index, None, (
                f"the peak of {name} is {peak}, below what it is at the end"))


def _against_totals(replay, index):
    events = replay.run.events
    # Before, somebody's events are missing.
    at = np.flatnonzero((events["kind"] == Kind.TOTALS)
                        & (events["device"] == index)
                        & (events["time"] >= replay.run.complete_from))
    for name, column in (("allocated", "address"), ("reserved", "bytes")):
        said = events[column][at].astype("<i8")
        ours = getattr(replay, name).after[at]
        for i in np.flatnonzero(said != ours)[:_MOST]:
            yield Violation("totals", index, int(at[i]), (
                f"{name} was {int(said[i])}, {int(ours[i])} by the events"))
