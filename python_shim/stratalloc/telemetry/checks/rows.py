# SPDX-License-Identifier: Apache-2.0
"""CSV and Parquet of events: the columns, their types, sums that can be, and
one answer to what the recording lacks."""

import csv

from stratalloc.telemetry.checks.findings import Findings
from stratalloc.telemetry.errors import MissingPackageError
from stratalloc.telemetry.exports.rows import (COLUMNS, OF_THE_RUN,
                                               arrow_type)

_TEXTS = frozenset(("event", "pool", "scope", "category", "file", "function",
                    "thread"))
_AT = {name: i for i, name in enumerate(COLUMNS)}


def check_csv(path):
    found = Findings()
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            head = next(rows, None)
            if head != list(COLUMNS):
                return [f"its first line is not the {len(COLUMNS)} names of "
                        "columns"]
            last, first = {}, None
            for i, row in enumerate(rows):
                first = _row(found, i, row, last, first)
            if not _ended(path):
                found.add("its last line has no end: it is cut off")
        except (csv.Error, UnicodeDecodeError) as error:
            found.add(f"it is no CSV in UTF-8: {str(error)[:200]}")
    return found.done()


def _ended(path):
    with open(path, "rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return False
        file.seek(-1, 2)
        return file.read() == b"\n"


def _row(found, i, row, last, first):
    if len(row) != len(COLUMNS):
        found.add(f"row {i} has {len(row)} fields of {len(COLUMNS)}")
        return first
    numbers = {}
    for name in COLUMNS:
        if name not in _TEXTS:
            field = row[_AT[name]]
            if not field.removeprefix("-").isdecimal() or len(field) > 20:
                found.add(f"row {i} has the {name} {field[:40]!r}")
                return first
            numbers[name] = int(field)
    _sums(found, i, numbers)
    _order(found, i, numbers, last)
    return _of_the_run(found, i, numbers, first)


def _order(found, i, row, last):
    if row["time_ns"] < last.get(row["device"], 0):
        found.add(f"row {i} is before the last one of its device")
    last[row["device"]] = row["time_ns"]


def _of_the_run(found, i, row, first):
    """`first`: the row whose answer every other has to give."""
    if any(row[name] < 0 for name in OF_THE_RUN):
        found.add(f"row {i} has fewer than none lost, or cost less than "
                  "nothing")
    first = first or row
    for name in OF_THE_RUN:
        if row[name] != first[name]:
            found.add(f"row {i} has the {name} {row[name]}, and the first one "
                      f"{first[name]}")
    return first


def _sums(found, i, row):
    if not 0 <= row["allocated"] <= row["active"]:
        found.add(f"row {i} has more allocated than active")
    if row["requested"] > row["active"]:
        found.add(f"row {i} has more requested than active")


def check_parquet(path):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError("Parquet", "pyarrow", error) from None
    found = Findings()
    try:
        with parquet.ParquetFile(path) as file:
            if file.schema_arrow.names != list(COLUMNS):
                return ["its columns are not ours"]
            for one in file.schema_arrow:
                if one.type != arrow_type(pyarrow, one.name):
                    found.add(f"the type of {one.name} is {one.type}")
            if found:
                return found.done()
            at, last, first = 0, {}, None
            for batch in file.iter_batches(columns=[
                    "time_ns", "device", "allocated", "active", "requested",
                    *OF_THE_RUN]):
                for i, row in enumerate(zip(*(
                        column.to_pylist() for column in batch.columns)), at):
                    row = dict(zip(batch.schema.names, row))
                    if None in row.values():
                        found.add(f"row {i} lacks a number")
                    else:
                        _order(found, i, row, last)
                        _sums(found, i, row)
                        first = _of_the_run(found, i, row, first)
                at += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        found.add(f"it is no Parquet file: {str(error)[:200]}")
    return found.done()
