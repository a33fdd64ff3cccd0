# SPDX-License-Identifier: Apache-2.0
"""A Run of what torch.cuda.memory._dump_snapshot wrote, as pickle or as JSON.

Torch says what was asked for and not how large a block is: of blocks that are
there at the end the snapshot knows, of others it follows (native_sizes.py). Nor
does it say what was there before its events: that follows from the end
(replay.Replay). Labels of torch (`user_metadata`, `compile_context`) become
scopes, except this allocator's own, "evicted" and "restored"; ranges of
record_function become scopes that are entered and left (annotations.py), and
`annotate` gives a block another label.

No file can run code, raise anything but SnapshotError or take memory out of
proportion to its size.
"""

import collections
import os

import numpy as np

from stratalloc._rendering.table import printable
from stratalloc.telemetry import (annotations, finite, gaps, gzipped, model,
                                  native_sizes, plain_pickle, progress,
                                  snapshot_names)
from stratalloc.telemetry.errors import SnapshotError, TelemetryError
from stratalloc.telemetry.model import Kind
from stratalloc.telemetry.regular import opened

_MOST_BYTES = 4 << 30
_PER_ROW = 8  # bytes of a file for each event or block in it, at least
_FREE_ROWS = 4096
_LONGEST = 40  # characters of an action that is not known
_SENTENCE = 2000  # characters
_ACTIONS = 16  # of those that are told apart

ACTIONS = {
    "alloc": Kind.ALLOC, "free_requested": Kind.FREE_REQUESTED,
    "free_completed": Kind.FREE_COMPLETED, "segment_alloc": Kind.SEGMENT_ALLOC,
    "segment_free": Kind.SEGMENT_FREE, "segment_map": Kind.SEGMENT_MAP,
    "segment_unmap": Kind.SEGMENT_UNMAP, "snapshot": Kind.SNAPSHOT,
    "oom": Kind.OOM, "user_defined": Kind.MARK,
    "annotate": Kind.RELABEL}  # of the block at an address; no moment
_CATEGORIES = {name: i for i, name in enumerate(model.CATEGORIES)}
_STATES = {model.ACTIVE: model.ACTIVE, model.PENDING: model.PENDING,
           model.FREE: model.FREE, "active_awaiting_free": model.PENDING}


def read(path, most_bytes=_MOST_BYTES):
    """The Run of a file.

    Raises:
      SnapshotError: it cannot be one of a snapshot, says which and why.
      OSError: it cannot be read.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise SnapshotError(
                f"{path} is not read: it has {size} bytes, and {most_bytes} "
                "are at most; record fewer events (max_entries of "
                "_record_memory_history)")
        data = file.read(size)  # never more: it would be taken at once
    try:
        data = gzipped.unpacked(data, most_bytes)
        return from_bytes(data)
    except TelemetryError as error:
        raise SnapshotError(f"{path} is neither a recording nor a snapshot "
                            f"that can be read: {error}") from None


def from_bytes(data):
    """The Run of a file's bytes; SnapshotError as read()."""
    if len(data) > _MOST_BYTES:
        raise SnapshotError(f"more than {_MOST_BYTES} bytes are not read")
    if not data:
        raise SnapshotError("it is empty; write it anew")
    if data[:1] == b"\x80":
        value = plain_pickle.loads(data)
    elif data[:1].strip() in (b"{", b"[", b""):
        value = _json(data)
    else:
        raise SnapshotError(
            "it is neither a pickle nor JSON; `stratalloc run --record` and "
            "torch.cuda.memory._dump_snapshot write files that are read here")
    return from_snapshot(value, len(data))


def _json(data):
    try:
        return finite.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SnapshotError(
            f"it is no JSON ({type(error).__name__}: {str(error)[:200]}); if "
            "it was cut off, write it anew") from None


def from_snapshot(value, size=None):
    """The Run of a snapshot's dict.

    Args:
      size: of the file it came from; bounds what is made of it.
    """
    if isinstance(value, list):
        value = {"segments": value}  # of torch.cuda.memory.memory_snapshot()
    if not isinstance(value, dict) or not ("segments" in value
                                           or "device_traces" in value):
        raise SnapshotError(
            "it has neither 'segments' nor 'device_traces', and is no snapshot "
            "of torch.cuda.memory._snapshot()")
    return _Reader(value, size).run()


class _Reader:
    """One snapshot on its way to a Run."""

    def __init__(self, value, size):
        self.value = value
        self.rows_left = (1 << 62 if size is None
                          else size // _PER_ROW + _FREE_ROWS)
        self.names = snapshot_names.Names(self.rows_left)
        own = value.get("stratalloc")
        self.own = own if isinstance(own, dict) else None
        self.ignored = collections.Counter()
        self.unpaired = 0  # ends of ranges without a beginning, no gap
        self.notes = []  # of each device, as torch 2.4 writes them

    def run(self):
        traces = self._traces()
        parts = [part for i, trace in enumerate(traces)
                 for part in [self._trace(i, trace)] if len(part)]
        notes, threads = self._annotations()
        if len(notes):
            parts.append(notes)
        events = _merged(parts)
        segments = self._segments()
        started = int(events["time"][0]) if len(events) else 0
        events["time"] -= started
        settings = self.value.get("allocator_settings")
        run = model.Run(
            source="stratalloc" if self.own else "torch", started=started,
            duration=int(events["time"][-1]) if len(events) else 0,
            settings=finite.plain(settings, levels=1) if isinstance(
                settings, dict) else {},
            scopes=self.names.scopes, sites=self.names.sites,
            pools=self.names.pools, threads=["main", *threads],
            events=events)
        known = set(segments) | {i for i, trace in enumerate(traces) if trace}
        for index in sorted(known):
            capacity, name, tier = self._card(index)
            run.devices.append(model.Device(
                index, name, capacity, None, tuple(segments.get(index, ())),
                tier=tier))
        if not run.devices:
            run.devices.append(model.Device(0, start=None, end=()))
        self._gaps(run, traces)
        if not self.own:
            native_sizes.fill(run)
        if finite.too_much(run):
            raise SnapshotError("the sizes of its events or blocks add up to "
                                "more than any program has; write it anew")
        for device in () if self.own else run.devices:
            gaps.note(run, device.index)
        return run

    def _gaps(self, run, traces):
        """What gaps.py decides by, as far as the file says it."""
        run.ignored = dict(self.ignored)
        if self.unpaired:
            run.about["unpaired_annotations"] = self.unpaired
        hosts = self.value.get("host_segments")
        sizes = [one.get("size") for one in hosts if isinstance(one, dict)
                 ] if isinstance(hosts, (list, tuple)) else []
        sizes = [one for one in sizes if type(one) is int and 0 <= one < 1 << 62]
        run.host_segments = len(sizes)
        run.host_bytes = min(sum(sizes), finite.MOST - 1)
        if self.own:
            said = self.own.get("recording")
            text = said.get("missing") if isinstance(said, dict) else None
            run.converted = (printable(text)[:_SENTENCE]
                             if isinstance(text, str) else "")
            return
        lengths = [len(trace) for trace in traces]
        most = run.settings.get("trace_alloc_max_entries")
        most = most if type(most) is int and most > 0 else 0
        # Rings are full alike, or that one is whose length is the bound.
        full = [most and length >= most for length in lengths]
        over = run.settings.get("trace_alloc_overflowed", any(full))
        for device in run.devices:
            length = (lengths[device.index] if device.index < len(lengths)
                      else 0)
            device.unrecorded = not length
            if over and length and (full[device.index] or not any(full)):
                device.ring = length

    def _card(self, index):
        cards = self.own.get("devices") if self.own else None
        for card in cards if isinstance(cards, list) else ():
            if isinstance(card, dict) and card.get("index") == index:
                capacity, name = card.get("capacity"), card.get("name")
                tier = card.get("tier")
                return (capacity if isinstance(capacity, int)
                        and 0 <= capacity < 1 << 62 else 0,
                        name if isinstance(name, str) else "",
                        tier if isinstance(tier, int)
                        and 0 <= tier < len(model.TIERS) else 0)
        return 0, "", 0

    def _count(self, rows):
        self.rows_left -= rows
        if self.rows_left < 0:
            raise SnapshotError(
                "it names the same events or blocks over and over, more than "
                "its size can hold; do not open it elsewhere either")

    def _traces(self):
        traces = self.value.get("device_traces", [])
        if not isinstance(traces, (list, tuple)):
            raise SnapshotError("'device_traces' is no list")
        if len(traces) > 256:
            raise SnapshotError(f"it has events of {len(traces)} devices; 256 "
                                "are read at most")
        for i, trace in enumerate(traces):
            if not isinstance(trace, (list, tuple)):
                raise SnapshotError(f"device_traces[{i}] is no list")
            self._count(len(trace))
        return traces

    def _trace(self, device, trace):
        """Events of one device, by columns: a million take seconds."""
        def where(i):
            return f"device_traces[{device}][{i}]"

        for i, event in enumerate(progress.over(trace, "looking at events")):
            if not isinstance(event, dict) or not isinstance(
                    event.get("action"), str):
                raise SnapshotError(f"{where(i)} is no event: it has no "
                                    "'action'")
        known = [event for event in trace if event["action"] in ACTIONS]
        for event in trace if len(known) < len(trace) else ():
            if event["action"] not in ACTIONS:
                name = printable(event["action"][:_LONGEST])
                self.ignored[name if name in self.ignored or
                             len(self.ignored) < _ACTIONS else "…"] += 1
        known = self._without_notes(device, known, where)
        found = np.zeros(len(known), model.EVENT)
        found["device"] = device
        found["kind"] = [ACTIONS[event["action"]] for event in known]
        found["address"] = _numbers(
            [event.get("device_free", 0) if event["action"] == "oom"
             else event.get("addr", 0) for event in known], where, "addr")
        found["bytes"] = _numbers([event.get("size", 0) for event in known],
                                  where, "size", 1 << 62)
        times = _numbers([event.get("time_us", i) for i, event in
                          enumerate(known)], where, "time_us", 1 << 53)
        found["time"] = np.maximum.accumulate(times.astype("<i8")) * 1000
        names, own = self.names, self.own is not None
        found["pool"] = [names.pool(device, event.get("stream", 0),
                                    event.get("pool_id")) for event in known]
        found["category"] = [_category(event) for event in known]
        found["scope"] = [names.label(event, own) for event in known]
        found["flags"] = [snapshot_names.moves(event) for event in known]
        found["site"] = [names.site(event.get("frames"), own)
                         for event in progress.over(known, "reading stacks")]
        return found

    def _without_notes(self, device, trace, where):
        """The events of a trace that are no annotations of torch 2.4."""
        if self.own or not any(event["action"] == "user_defined"
                               for event in trace):
            return trace
        staged = [annotations.stage_of(event) for event in trace]
        times = _numbers([event.get("time_us", i) for i, event in
                          enumerate(trace)], where, "time_us", 1 << 53)
        self.notes.append([
            annotations.Note(time, device, self.names.scope(one[1]), one[0])
            for one, time in zip(staged, times.tolist()) if one])
        return [event for event, one in zip(trace, staged) if not one]

    def _annotations(self):
        """(events, their threads) of record_function ranges."""
        notes = self.value.get("external_annotations") or ()
        if not isinstance(notes, (list, tuple)):
            raise SnapshotError("'external_annotations' is no list")
        self._count(len(notes))
        found, lanes, left_out = annotations.events([
            annotations.external(notes, self.names.scope),
            *annotations.by_device(self.notes)])
        self.unpaired = left_out
        return found, ["annotations", *(f"annotations {1 + lane}" for lane in
                                        range(1, lanes))]

    def _segments(self):
        """device -> [Segment]."""
        segments = self.value.get("segments", [])
        if not isinstance(segments, (list, tuple)):
            raise SnapshotError("'segments' is no list")
        self._count(len(segments))
        found = {}
        for i, segment in enumerate(segments):
            where = f"segments[{i}]"
            if not isinstance(segment, dict):
                raise SnapshotError(f"{where} is no dict")
            device = _number(segment, "device", where, 256, 0)
            address = _number(segment, "address", where, 1 << 64)
            size = _number(segment, "total_size", where, 1 << 62)
            pool = self.names.pool(device, segment.get("stream", 0),
                                   segment.get("segment_pool_id"))
            found.setdefault(device, []).append(model.Segment(
                address, size, pool, bool(segment.get("is_expandable")),
                segment.get("segment_type") == "small",
                tuple(self._blocks(where, segment, address))))
        return {device: sorted(some, key=lambda one: one.address)
                for device, some in found.items()}

    def _blocks(self, where, segment, address):
        blocks = segment.get("blocks", ())
        if not isinstance(blocks, (list, tuple)):
            raise SnapshotError(f"{where}['blocks'] is no list")
        self._count(len(blocks))
        for i, block in enumerate(blocks):
            here = f"{where}['blocks'][{i}]"
            if not isinstance(block, dict):
                raise SnapshotError(f"{here} is no dict")
            state = _STATES.get(block.get("state")) if isinstance(
                block.get("state"), str) else None
            if state is None:
                raise SnapshotError(f"{here} has the state "
                                    f"{str(block.get('state'))[:40]!r}, which "
                                    "torch does not have")
            size = _number(block, "size", here, 1 << 62)
            at = _number(block, "address", here, 1 << 64, address)
            asked = 0 if state == model.FREE else _asked(block, size, here)
            live = state != model.FREE
            yield model.Block(
                at, size, asked, state,
                self.names.label(block, self.own is not None) if live else 0,
                _category(block) if live else 0,
                self.names.site(block.get("frames"), self.own is not None)
                if live else 0)
            address = at + size


def _asked(block, size, where):
    """What was asked for; of old torch from the block's history."""
    history = block.get("history")
    if "requested_size" not in block and isinstance(history, list) and history:
        if isinstance(history[0], dict):
            return _number(history[0], "real_size", where, 1 << 62, size)
    return _number(block, "requested_size", where, 1 << 62, size)


def _category(item):
    name = item.get("category")
    return _CATEGORIES.get(name, 0) if isinstance(name, str) else 0


def _number(item, key, where, below, default=None):
    value = item.get(key, default)
    if not isinstance(value, int) or not 0 <= value < below:
        raise SnapshotError(f"{where} has no {key!r} that could be one")
    return value


def _numbers(values, where, key, below=1 << 64):
    """A column; SnapshotError naming the first that is no number."""
    if all(type(one) is int for one in values) and (
            0 <= min(values, default=0) and max(values, default=0) < below):
        return np.array(values, "<u8")
    raise SnapshotError(next(
        f"{where(i)} has no {key!r} that could be one"
        for i, value in enumerate(values)
        if type(value) is not int or not 0 <= value < below))


def _merged(parts):
    """By time; the order within a part stays."""
    if not parts:
        return np.zeros(0, model.EVENT)
    joined = np.concatenate(parts)
    return joined[np.argsort(joined["time"], kind="stable")]
