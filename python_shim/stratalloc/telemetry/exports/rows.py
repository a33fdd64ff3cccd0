# SPDX-License-Identifier: Apache-2.0
"""CSV and Parquet: a row per event, with the device's sums after it.

What the recording lacks and what it cost is the same in every row: a table has
no other place that every reader keeps, and sums of the rows stay theirs.
"""

import csv
import io

import numpy as np

from stratalloc.telemetry import model, progress, replay
from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports.notes import notes
from stratalloc.telemetry.exports.target import target, text
from stratalloc.telemetry.model import Kind

COLUMNS = ("time_ns", "device", "event", "address", "bytes", "block_bytes",
           "stream", "pool", "scope", "category", "file", "line", "function",
           "thread", "flags", "duration_ns", "allocated", "active", "requested",
           "reserved", "dropped_events", "complete_from_ns", "names_lost",
           "stacks_lost", "overhead_ns")
SUMS = ("allocated", "active", "requested", "reserved")
OF_THE_RUN = COLUMNS[-5:]  # the same in every row
_CHUNK = 1 << 16
_TIMED = (Kind.MOVE, Kind.STALL, Kind.LATE)


def write_csv(run, path):
    """UTF-8 with a line of names; fields are quoted where they must be."""
    with target(path) as file:
        out = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        tables, sums = _Tables(run), _sums(run)
        for at in progress.over(range(0, len(run.events), _CHUNK),
                                "writing events"):
            plain = tables.columns(slice(at, at + _CHUNK), sums)
            writer.writerows(zip(*(
                [values[i] for i in index] if values is not None else index
                for values, index in plain)))
        out.flush()
        out.detach()


def write_parquet(run, path):
    """With pyarrow: texts are dictionaries, the recording's notes metadata."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError("Parquet", "pyarrow", error) from None
    tables, sums = _Tables(run), _sums(run)
    schema = pyarrow.schema(
        [(name, arrow_type(pyarrow, name)) for name in COLUMNS],
        {key: str(value) for key, value in notes(run).items()})
    with target(path) as file, parquet.ParquetWriter(file, schema) as writer:
        for at in progress.over(range(0, len(run.events), 1 << 18),
                                "writing events"):
            arrays = []
            for name, (values, index) in zip(COLUMNS, tables.columns(
                    slice(at, at + (1 << 18)), sums)):
                kind = arrow_type(pyarrow, name)
                arrays.append(
                    pyarrow.array(index, kind) if values is None
                    else pyarrow.DictionaryArray.from_arrays(
                        pyarrow.array(index, "int32"), pyarrow.array(
                            values, kind.value_type)))
            writer.write_table(pyarrow.Table.from_arrays(arrays,
                                                         schema=schema))


_TEXTS = ("event", "pool", "scope", "category", "file", "function", "thread")


def arrow_type(pyarrow, name):
    """Of a column."""
    if name in _TEXTS:
        return pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    if name in ("address", "stream", "bytes", "block_bytes"):
        return pyarrow.uint64()
    return pyarrow.int64()


def _sums(run):
    """The curves of every device, each event with those of its own."""
    found = {name: np.zeros(len(run.events), "<i8") for name in SUMS}
    for index in replay.devices(run):
        walked = replay.Replay(run, index)
        ours = run.events["device"] == index
        for name in SUMS:
            found[name][ours] = getattr(walked, name).after[ours]
    return found


class _Tables:
    """The run's tables as columns of text."""

    def __init__(self, run):
        self.run = run
        self.scopes = [""] + [text(name) for name in run.scopes[1:]]
        self.files = [text(one.file) for one in run.sites]
        self.lines = np.array([one.line for one in run.sites], "<i8")
        self.functions = [""] + [text(one.function) for one in run.sites[1:]]
        self.threads = [text(name) for name in run.threads]
        self.pools = ["{}.{}".format(*one.owner) for one in run.pools]
        self.streams = np.array([one.stream for one in run.pools], "<u8")
        # Numbers have gaps: one is no kind any more.
        self.kinds = [""] * (max(Kind) + 1)
        for kind in Kind:
            self.kinds[kind] = kind.name.lower()
        self.moves = [f"{one}_to_{two}" for one in model.TIERS
                      for two in model.TIERS]
        self.categories = [*model.CATEGORIES, *self.moves, *model.TIERS]

    def columns(self, where, sums):
        """(texts, index) or (None, numbers), in the order of COLUMNS."""
        events = self.run.events[where]
        kind = events["kind"]
        moved = kind == Kind.MOVE
        timed = np.isin(kind, _TIMED)
        category = events["category"].astype("i4") + np.select(
            [moved, kind == Kind.DROPPED],
            [len(model.CATEGORIES), len(model.CATEGORIES) + len(self.moves)], 0)
        block = kind <= Kind.FREE_COMPLETED
        site, pool = events["site"], events["pool"]
        run = self.run
        numbers = {
            **{name: np.full(len(events), value, "<i8") for name, value in zip(
                OF_THE_RUN, (run.dropped, run.complete_from, run.names_lost,
                             run.stacks_lost, run.overhead))},
            "time_ns": events["time"], "device": events["device"],
            "address": events["address"], "bytes": events["bytes"],
            "block_bytes": np.where(block, events["aux"], 0),
            "stream": self.streams[pool], "line": self.lines[site],
            "flags": events["flags"],
            "duration_ns": np.where(timed, events["aux"], 0),
            **{name: sums[name][where] for name in SUMS}}
        texts = {"event": (self.kinds, kind), "pool": (self.pools, pool),
                 "scope": (self.scopes, events["scope"]),
                 "category": (self.categories, category),
                 "file": (self.files, site), "function": (self.functions, site),
                 "thread": (self.threads, events["thread"])}
        for name in COLUMNS:
            if name in texts:
                values, index = texts[name]
                yield values, index.astype("i4").tolist()
            else:
                yield None, numbers[name].tolist()
