# SPDX-License-Identifier: Apache-2.0
"""Our own recordings as Runs: the head that sections.py reads, made sense of.

Nothing in it is believed: every number is held against what it can be, every
index against its table. What is wrong is a RecordingError that says what, why
and what to do next.
"""

import dataclasses
import re

import numpy as np

from stratalloc.telemetry import finite, model, sections
from stratalloc.telemetry.sections import (  # what read() raises
    RecordingError, error)  # noqa: F401

_STATES = {3: model.ACTIVE, 4: model.PENDING}  # allocator/values/block_state.h
_LEVELS = ("events", "callsites", "full")
_STATS = ("allocated_bytes", "requested_bytes", "active_bytes",
          "reserved_bytes", "allocation")


def read(path):
    """The Run that the recording at `path` has.

    Raises RecordingError, and OSError if the file cannot be read.
    """
    head, events = sections.read(path)
    return _Reader(path, head).run(events)


class _Reader:
    """A head that is held against what it should be, step by step."""

    def __init__(self, path, head):
        self._path, self._head = path, head

    def run(self, events):
        head = self._head
        run = model.Run(
            source="stratalloc",
            started=self._integer("started"),
            duration=self._integer("duration"),
            about=finite.plain(self._object("about")),
            owners_said=bool(head.get("owners_said")),
            torn=bool(head.get("torn")),
            redacted=bool(head.get("redacted")),
            overhead=self._integer("overhead_ns"),
            stacks_lost=self._integer("stacks_lost"),
            dropped=self._integer("overwritten")
            + self._integer("without_a_ring") + self._integer("unknown"),
            names_lost=self._integer("names_lost"),
            complete_from=self._integer("complete_from"))
        settings = run.about.get("settings")
        if isinstance(settings, dict):
            run.settings = settings
        if head.get("level") in _LEVELS:
            run.level = head["level"]
        run.scopes = self._table("scopes", "(no scope)", "scope #{}")
        self._sites(run, events)
        self._marks(run, events)
        self._pools(run)
        self._threads(run)
        # Of pools that are alike the first one's.
        self._numbers = {run.pools[i]: i
                         for i in range(len(run.pools) - 1, 0, -1)}
        start, end = self._devices("start", run), self._devices("end", run)
        for index in sorted(set(events["device"].tolist()) | set(start)
                            | set(end)):
            run.devices.append(self._device(index, start, end))
        self._bound(run, events)
        run.events = events
        if finite.too_much(run):
            raise error(self._path, "it has events or blocks whose sizes add "
                        "up to more than can be", "it is damaged; record again")
        return run

    def _integer(self, name, of=None):
        value = (self._head if of is None else of).get(name, 0)
        try:
            return _bounded(value)
        except ValueError:
            raise self._wrong(name) from None

    def _object(self, name):
        value = self._head.get(name)
        return value if isinstance(value, dict) else {}

    def _wrong(self, name):
        return error(self._path, f"{name} of its head is not what it should "
                     "be", "it is damaged; record again")

    def _rows(self, name, more=()):
        """[[number, text]]; `more`: lengths of rows with numbers after that."""
        rows = self._head.get(name, [])
        if not isinstance(rows, list) or not all(
                isinstance(row, list) and len(row) in (2, *more)
                and isinstance(row[1], str)
                and all(isinstance(one, int) and 0 <= one < 1 << 32
                        for one in (row[0], *row[2:])) for row in rows):
            raise self._wrong(name)
        return rows

    def _table(self, name, none, unnamed):
        """Index -> text: of a number without a name `unnamed`."""
        named = dict(self._rows(name))
        # A table as long as its largest number, which a damaged file may claim
        # to be anything.
        if named and max(named) > (1 << 20):
            raise self._wrong(name)
        table = [unnamed.format(i) for i in range(max(named, default=0) + 1)]
        for index, text in named.items():
            table[index] = text
        table[0] = none
        return table

    def _sites(self, run, events):
        """Sites by their places in a table without gaps: of lines [number,
        text], of calls on a stack [number, text, caller, the user's line]."""
        named = {row[0]: row[1:] for row in self._rows("sites", (4,))}
        named.pop(0, None)
        used = np.unique(events["site"])
        numbers = np.union1d(np.array(sorted(named), "<u4"), used[used > 0])
        place = {number: i for i, number in enumerate(numbers.tolist(), 1)}
        for number in place:
            text, caller, own = (*named.get(number, (f"site #{number}",)),
                                 0, 0)[:3]
            run.sites.append(dataclasses.replace(
                _site(text), below=place.get(caller, 0),
                own=place.get(own, 0)))
        events["site"] = np.where(
            events["site"] == 0, 0, 1 + np.searchsorted(numbers,
                                                        events["site"]))

    def _marks(self, run, events):
        """Marks' names stand behind the scopes'."""
        named = dict(self._rows("marks"))
        marks = events["kind"] == model.Kind.MARK
        numbers, which = np.unique(events["scope"][marks], return_inverse=True)
        events["scope"][marks] = len(run.scopes) + which
        run.scopes += [named.get(number, f"mark #{number}")
                       for number in numbers.tolist()]

    def _pools(self, run):
        for number, text in sorted(self._rows("pools")):
            parts = text.split(" ")
            if not 0 < number <= 0xffff or len(parts) != 4 or not all(
                    part.isascii() and part.isdecimal() and len(part) <= 20
                    for part in parts):
                raise self._wrong("pools")
            device, stream, graph, user = map(int, parts)
            while len(run.pools) <= number:
                run.pools.append(model.Pool(0, 0))
            run.pools[number] = model.Pool(device, stream, (graph, user))

    def _threads(self, run):
        numbers = self._head.get("threads", [])
        if not isinstance(numbers, list) or len(numbers) > 1 << 16 or not all(
                isinstance(number, int) for number in numbers):
            raise self._wrong("threads")
        named = dict(self._rows("names_of_threads"))
        run.threads = [f"{named.get(number & 0xffffffff, 'thread')} {number}"
                       for number in numbers] or ["main"]

    def _devices(self, name, run):
        """Index -> state, as the recorder took it."""
        states = self._head.get(name)
        if states is None:
            return {}
        if not isinstance(states, list):
            raise self._wrong(name)
        found = {}
        for state in states:
            try:
                index = _bounded(state["index"], 0, 16)
                segments = tuple(self._segment(index, segment, run)
                                 for segment in state.get("segments", []))
            except (KeyError, TypeError, ValueError, IndexError,
                    AttributeError, OverflowError):
                raise self._wrong(name) from None
            found[index] = (state, segments)
        return found

    def _segment(self, device, segment, run):
        graph, user = map(_bounded, segment["owner"])
        pool = model.Pool(device, _bounded(segment["stream"]), (graph, user))
        number = self._numbers.get(pool)
        if number is None:
            number = self._numbers[pool] = len(run.pools)
            run.pools.append(pool)
        blocks = tuple(
            model.Block(_bounded(address), _bounded(size), _bounded(requested),
                        _STATES.get(state, model.FREE),
                        _bounded(scope, 0, 1 << 20),
                        _bounded(category, 0, len(model.CATEGORIES)))
            for address, size, requested, state, scope, category
            in segment["blocks"])
        self._name(run, max((block.scope for block in blocks), default=0))
        return model.Segment(_bounded(segment["address"]),
                             _bounded(segment["size"]),
                             number,
                             bool(segment["expandable"]),
                             bool(segment["small"]), blocks)

    def _device(self, index, start, end):
        state, segments = end.get(index, ({}, None))
        known = start.get(index)
        return model.Device(
            index, capacity=self._integer("capacity", state),
            # A device that was opened later had nothing.
            start=known[1] if known is not None
            else () if "start" in self._head else None,
            end=segments, regions=self._regions(state),
            stats=self._counters(state),
            before=self._counters(known[0]) if known is not None else {})

    def _counters(self, state):
        stats, found = state.get("stats"), {}
        if not isinstance(stats, dict):
            return found
        for name in _STATS:
            values = stats.get(name)
            if isinstance(values, list) and len(values) == 4:
                for part, value in zip(
                        ("current", "peak", "allocated", "freed"), values):
                    found[f"{name}.all.{part}"] = self._integer(
                        part, {part: value})
        for name in ("num_ooms", "num_alloc_retries"):
            if name in stats:
                found[name] = self._integer(name, stats)
        return found

    def _regions(self, state):
        regions = state.get("regions", [])
        try:
            return tuple((_bounded(address), _bounded(size),
                          _bounded(handle, 512))
                         for address, size, handle in regions)
        except (TypeError, ValueError, OverflowError):
            raise self._wrong("regions") from None

    @staticmethod
    def _name(run, scope):
        while len(run.scopes) <= scope:
            run.scopes.append(f"scope #{len(run.scopes)}")

    def _bound(self, run, events):
        """Every index has its row."""
        if not len(events):
            return
        if events["time"].min() < 0 or events["time"].max() >= finite.MOST:
            raise error(self._path, "it has events of times that "
                        "cannot be", "it is damaged; record again")
        if int(events["scope"].max()) >= 1 << 21:
            raise self._wrong("scopes")
        self._name(run, int(events["scope"].max()))
        while len(run.pools) <= int(events["pool"].max()):
            run.pools.append(model.Pool(0, 0))
        while len(run.threads) <= int(events["thread"].max()):
            run.threads.append(f"thread #{len(run.threads)}")
        moved = np.isin(events["kind"], (model.Kind.MOVE, model.Kind.LATE))
        known = np.select(
            [moved, events["kind"] == model.Kind.DROPPED],
            [len(model.TIERS) ** 2, len(model.TIERS)], len(model.CATEGORIES))
        if int(events["kind"].max()) > max(model.Kind) or int(
                events["device"].max()) >= 16 or (
                    events["category"] >= known).any():
            raise error(self._path, "it has events of kinds or categories "
                        "that this stratalloc does not know",
                        "update stratalloc")


def _bounded(value, least=0, below=finite.MOST):
    """An integer of the head; ValueError if it is none, or beyond what can be
    added up in 64 bits."""
    if type(value) is not int or not least <= value < below:
        raise ValueError
    return value


_LINE = re.compile(r"(.+):(\d{1,9})(?: ([^:]*))?", re.DOTALL)


def _site(text):
    """ "file:line function" as a Site; what is not like that is a function."""
    found = _LINE.fullmatch(text)
    if found is None:
        return model.Site("", 0, text)
    file, line, function = found.groups()
    return model.Site(file, int(line), function or "")
