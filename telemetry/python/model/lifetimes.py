# SPDX-License-Identifier: Apache-2.0
"""Lifetimes: when each block of a device was there, as columns.

A row is one stay of a block on the device: from the event that allocated it to
those that gave it up. Moments are indices of Run.events; BEFORE is "alive when
the recording began" and len(events) "alive when it ended". A block of which a
handle was evicted has a row up to that and rows for what stayed; `moved` says
that a row began so, and is no allocation of the program.

Rows whose events contradict each other (`faults`) are ended where the next one
begins: sums stay finite, and identities.check() tells of them.
"""

import dataclasses

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind

BEFORE = -1

ROW = np.dtype([
    ("address", "<u8"), ("size", "<i8"), ("requested", "<i8"),
    ("begin", "<i8"),  # the event that allocated it
    ("asked", "<i8"),  # ... that asked for its end: no more `allocated`
    ("done", "<i8"),  # ... that completed it: no more `active`
    ("scope", "<u4"), ("site", "<u4"), ("pool", "<u2"), ("category", "u1"),
    ("moved", "?"), ("guessed", "?")])  # guessed: no event says the size


@dataclasses.dataclass(frozen=True)
class Fault:
    """An event that contradicts those before it."""

    event: int
    what: str


def rounded(requested):
    """The least block that has room for so many bytes: what is assumed where
    nobody says how large the block was."""
    return np.maximum((np.asarray(requested, "<i8") + 511) // 512 * 512, 512)


def of(run, device, start, end):
    """(rows in the order of `begin`, [Fault]) of one device.

    Args:
      start, end: blocks ([Block], those that are not free), or None where they
        are not known: then what must have been there at the start follows from
        events that end what no event began, and from `end`.
    """
    kinds = run.events["kind"]
    at = np.flatnonzero((kinds <= Kind.FREE_COMPLETED)
                        & (run.events["device"] == device))
    events = run.events[at]
    faults = []
    if start is None:
        start = _implied_start(events, end)
    columns = _Columns(start, events, at)
    rows, alive = columns.rows(len(run.events), faults)
    if end is not None:
        _take_end(run, device, rows, alive, end)
    order = np.argsort(rows["begin"], kind="stable")
    return rows[order], faults


class _Columns:
    """Start's blocks as events before all others, then the device's."""

    def __init__(self, start, events, at):
        self.start = list(start)
        count = len(self.start)
        pending = [i for i, block in enumerate(self.start)
                   if block.state == model.PENDING]
        before = np.zeros(count + len(pending), model.EVENT)
        for i, block in enumerate(self.start):
            before[i] = (block.time, block.address, block.requested,
                         block.size, block.scope, block.site, 0, 0, Kind.ALLOC,
                         block.category, 0, 0)
        for i, which in enumerate(pending):
            before[count + i] = before[which]
            before[count + i]["kind"] = Kind.FREE_REQUESTED
        joined = np.concatenate([before, events])
        where = np.concatenate([np.full(len(before), BEFORE), at])
        order = np.argsort(joined["address"], kind="stable")
        self.events, self.at = joined[order], where[order]

    def rows(self, last, faults):
        """(rows, which are alive at the end)."""
        events, at = self.events, self.at
        kind, address = events["kind"], events["address"]
        # What follows at the same address: its kind, or -1.
        follows = np.full(len(kind), -1, "i2")
        same = address[1:] == address[:-1]
        follows[:-1][same] = kind[1:][same]
        precedes = np.full(len(kind), -1, "i2")
        precedes[1:][same] = kind[:-1][same]
        self._complain(kind, precedes, faults)

        first = np.flatnonzero(kind == Kind.ALLOC)
        rows = np.zeros(len(first), ROW)
        for name in ("address", "scope", "site", "pool", "category"):
            rows[name] = events[name][first]
        rows["requested"] = events["bytes"][first].astype("<i8")
        size = events["aux"][first].astype("<i8")
        rows["size"] = np.where(size > 0, size, rounded(rows["requested"]))
        rows["guessed"] = size == 0
        rows["moved"] = events["flags"][first] & (
            model.EVICTED | model.RESTORED) != 0
        rows["begin"] = at[first]

        padded = np.append(at, [last, last])
        one, two = follows[first], np.append(follows, [-1, -1])[first + 1]
        asked = np.where(one >= 0, padded[first + 1], last)
        # Free requested and then whatever comes; a free that was completed
        # without a request, or another allocation, ends it at once.
        done = np.where(one == Kind.FREE_REQUESTED,
                        np.where(two >= 0, padded[first + 2], last), asked)
        rows["asked"], rows["done"] = asked, done
        return rows, done == last

    def _complain(self, kind, precedes, faults):
        wrong = (
            ((kind == Kind.ALLOC)
             & ((precedes == Kind.ALLOC) | (precedes == Kind.FREE_REQUESTED)),
             "an allocation where a block lives already"),
            ((kind == Kind.FREE_REQUESTED) & (precedes != Kind.ALLOC),
             "a free of a block that does not live"),
            ((kind == Kind.FREE_COMPLETED) & (precedes != Kind.FREE_REQUESTED)
             & (precedes != Kind.ALLOC),
             "the end of a free of a block that does not live"))
        for mask, what in wrong:
            for i in np.flatnonzero(mask):
                faults.append(Fault(int(self.at[i]), (
                    f"{what}, address {int(self.events['address'][i]):#x}")))


def _implied_start(events, end):
    """[Block]: what was there before the first event, as what follows says."""
    _, first = np.unique(events["address"], return_index=True)
    found = []
    for event in events[first[events["kind"][first] != Kind.ALLOC]]:
        requested = int(event["bytes"])
        found.append(model.Block(
            int(event["address"]),
            int(event["aux"]) or int(rounded(requested)), requested,
            model.PENDING if event["kind"] == Kind.FREE_COMPLETED
            else model.ACTIVE,
            int(event["scope"]), int(event["category"]), int(event["site"])))
    if end is not None:
        seen = set(events["address"].tolist())
        found += [block for block in end if block.address not in seen
                  and block.tier == 0]
    return found


def program_frees(run):
    """Indices of the events at which the program gave a block up, one for each.

    Of a block that is partly away each piece has a free of its own: the one
    that counts is where the block began, or says that this was away. Of a block
    that is older than the recording and has a hole in its middle both ends
    count: no event says that they are one.
    """
    events = run.events
    kinds = events["kind"]
    frees = kinds == Kind.FREE_REQUESTED
    moved = (events["flags"] & (model.EVICTED | model.RESTORED)) != 0
    away = kinds == Kind.FREED_AWAY
    if not (moved & (kinds <= Kind.FREE_COMPLETED)).any() and not away.any():
        return np.flatnonzero(frees)
    at = np.flatnonzero((frees | away | (kinds == Kind.ALLOC)) & ~moved)
    ours = events[at]
    order = np.lexsort((at, ours["address"], ours["device"]))
    at, ours = at[order], ours[order]
    begins = ours["kind"] == Kind.ALLOC
    # What came before at the same address: nothing, or its block's beginning.
    again = np.append(False, (ours["address"][1:] == ours["address"][:-1])
                      & (ours["device"][1:] == ours["device"][:-1]))
    whole = np.append(False, begins[:-1]) & again
    unknown = ~again & (ours["kind"] == Kind.FREE_REQUESTED)
    for i in np.flatnonzero(unknown):
        whole[i] = not _ends_away(events, away, at[i])
    return np.sort(at[~begins & (whole | (ours["kind"] == Kind.FREED_AWAY))])


def _ends_away(events, away, at):
    """Whether a free is of a piece of the block whose beginning, away, ends
    next."""
    one = events[at]
    later = np.flatnonzero(away[at:] & (events["device"][at:] == one["device"]))
    if not len(later):
        return False
    block = events[at + later[0]]
    return bool(block["address"] < one["address"]
                < block["address"] + block["aux"])


def relabels(run, device, rows):
    """(rows, events): columns of which row a relabel reached, in the order of
    the events. It names a block; of one that is partly away, that is every piece
    that is here.
    """
    kinds = run.events["kind"]
    events = np.flatnonzero((kinds == Kind.RELABEL)
                            & (run.events["device"] == device))
    if not len(events) or not len(rows):
        return events[:0], events[:0]
    order = np.lexsort((rows["begin"], rows["address"]))
    named = run.events[events]
    reached = _begun(rows, order, named["address"], events)
    whole = (reached >= 0) & (
        rows["size"][reached] >= named["aux"].astype("<i8"))
    of_pieces = [_pieces(rows, order, int(address), int(size), at)
                 for address, size, at in zip(
                     named["address"][~whole], named["aux"][~whole],
                     events[~whole].tolist())]
    which = np.concatenate([reached[whole], *of_pieces]).astype("<i8")
    at = np.concatenate([events[whole], np.repeat(
        events[~whole], [len(pieces) for pieces in of_pieces])])
    by_event = np.argsort(at, kind="stable")
    return which[by_event], at[by_event]


def _begun(rows, order, addresses, events):
    """Of each address the row that began there before an event and is alive
    then, or -1. `order`: of rows by address and beginning."""
    count = len(rows)
    sorted_ = np.lexsort((
        np.append(np.zeros(count, "i1"), np.ones(len(events), "i1")),
        np.append(rows["begin"][order], events),
        np.append(rows["address"][order], addresses)))
    last = np.maximum.accumulate(
        np.where(sorted_ < count, np.arange(len(sorted_)), -1))
    asked = sorted_ >= count
    place = sorted_[last[asked]]
    found = np.full(len(events), -1, "<i8")
    found[sorted_[asked] - count] = np.where(
        last[asked] >= 0, order[place % max(count, 1)], -1)
    row = rows[found]
    good = ((found >= 0) & (row["address"] == addresses)
            & (row["done"] > events))
    return np.where(good, found, -1)


def _pieces(rows, order, address, size, at):
    """Rows that are alive at an event in a block of which a part is away."""
    inside = order[slice(*np.searchsorted(
        rows["address"][order], [address, address + max(size, 1)]))]
    return inside[(rows["begin"][inside] <= at) & (rows["done"][inside] > at)]


def _time_of(run, moments):
    """ns of events, 0 of BEFORE."""
    return np.append(run.events["time"], 0)[moments]


def _take_end(run, device, rows, alive, end):
    """Takes from the end what no event says of the blocks that live there: a
    size, and an owner where the events do not say each change of it."""
    said = np.zeros(len(rows), bool)
    if run.owners_said:
        said = _time_of(run, rows["begin"]) >= run.complete_from
    blocks = {block.address: block for block in end if block.tier == 0}
    said[relabels(run, device, rows)[0]] = True
    for i in np.flatnonzero(alive):
        block = blocks.get(int(rows["address"][i]))
        if block is None:
            continue
        if rows["guessed"][i]:
            rows["size"][i] = block.size
        if said[i]:
            continue
        if block.scope:
            rows["scope"][i] = block.scope
        if block.category:
            rows["category"][i] = block.category
