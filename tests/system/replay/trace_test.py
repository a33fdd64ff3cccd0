# SPDX-License-Identifier: Apache-2.0
"""The trace's file, the reader of snapshots, and the recorder's translation."""

import json
import os
import pickle
import struct
import zlib

import numpy
import pytest

from stratalloc.bench import traces as bench_traces
from tests.system.replay import history, table, trace


def _operations():
    return numpy.array([
        (trace.MALLOC, 0, 0, 0, 512), (trace.MALLOC, 1, 0, 1, 1 << 30),
        (trace.RECORD_STREAM, 1, 0, 0, 0), (trace.FREE, 0, 0, 0, 0),
        (trace.EMPTY_CACHE, 0, 0, 0, 0), (trace.MALLOC, 0, 0, 2, 1),
    ], trace.OPERATION)


def test_round_trip(tmp_path):
    path = tmp_path / "x.trace"
    trace.write(path, {"source": "here"}, _operations())
    read = trace.read(path)
    assert (read.operations == _operations()).all()
    assert (read.blocks, read.streams) == (3, 2)
    assert read.header["source"] == "here"


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "x.trace"
    trace.write(path, {}, _operations())
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(trace.TraceError):
            trace.read(path)
        with pytest.raises(ValueError):
            bench_traces.read(path)


def test_the_bench_reads_the_same(tmp_path):
    path = tmp_path / "x.trace"
    trace.write(path, {}, _operations())
    read = bench_traces.read(path)
    assert read.packed == _operations().tobytes()
    assert (read.blocks, read.streams) == (3, 2)


@pytest.mark.parametrize("rows,text", [
    ([(trace.FREE, 0, 0, 0, 0)], "never allocated"),
    ([(trace.MALLOC, 0, 0, 0, 8), (trace.FREE, 0, 0, 0, 0),
      (trace.FREE, 0, 0, 0, 0)], "freed twice"),
    ([(trace.MALLOC, 0, 0, 0, 8), (trace.FREE, 0, 0, 1, 0),
      (trace.MALLOC, 0, 0, 1, 8)], "before it is allocated"),
    ([(trace.MALLOC, 0, 0, 0, 8), (trace.FREE, 0, 0, 0, 0),
      (trace.RECORD_STREAM, 1, 0, 0, 0)], "after it was freed"),
    ([(trace.MALLOC, 0, 0, 5, 8)], "not numbered"),
    ([(trace.MALLOC, 0, 0, 0, 0)], "0 bytes"),
    ([(trace.MALLOC, 0, 0, 0, 1 << 60)], "16 TiB"),
    ([(9, 0, 0, 0, 0)], "unknown kind"),
    ([], "no operations"),
])
def test_operations_that_make_no_sense(rows, text):
    with pytest.raises(trace.TraceError, match=text):
        trace.check(numpy.array(rows, trace.OPERATION))


def test_a_bomb_is_not_unpacked(tmp_path):
    header = json.dumps({"version": 1, "operations": 1, "blocks": 1,
                         "streams": 1}).encode()
    path = tmp_path / "bomb.trace"
    path.write_bytes(trace.MAGIC + struct.pack("<I", len(header)) + header
                     + zlib.compress(bytes(1 << 24)))
    with pytest.raises(trace.TraceError, match="14 bytes"):
        trace.read(path)


class _Hostile:
    def __reduce__(self):
        return os.mkdir, (_Hostile.path,)


def test_a_snapshot_that_runs_code_is_refused(tmp_path):
    _Hostile.path = str(tmp_path / "made")
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[_Hostile()]]}))
    with pytest.raises(trace.TraceError, match="mkdir"):
        history.load_snapshot(path)
    assert not os.path.exists(_Hostile.path)


@pytest.mark.parametrize("content", [
    b"", b"\x80", pickle.dumps(3), pickle.dumps({"device_traces": 3}),
    pickle.dumps({"device_traces": [[]]})[:-3],
])
def test_no_snapshot(tmp_path, content):
    path = tmp_path / "x.pickle"
    path.write_bytes(content)
    with pytest.raises(trace.TraceError, match="snapshot"):
        history.load_snapshot(path)


def _entry(action, address, size=512, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream}


def test_a_free_that_waited_had_another_stream():
    operations = history.snapshot_operations({"device_traces": [[
        _entry("alloc", 1), _entry("alloc", 2, 100, 77),
        _entry("free_requested", 1), _entry("alloc", 3),
        _entry("free_completed", 1),
        _entry("free_requested", 3), _entry("free_completed", 3),
        # Allocated before the history began.
        _entry("free_requested", 9), _entry("free_completed", 9),
    ]]})
    assert [tuple(row) for row in operations] == [
        (trace.MALLOC, 0, 0, 0, 512), (trace.MALLOC, 1, 0, 1, 100),
        (trace.RECORD_STREAM, 1, 0, 0, 0), (trace.FREE, 0, 0, 0, 0),
        (trace.MALLOC, 0, 0, 2, 512), (trace.FREE, 0, 0, 2, 0),
    ]


def test_an_entry_without_its_address():
    with pytest.raises(trace.TraceError, match="makes no sense"):
        history.snapshot_operations({"device_traces": [[{"action": "alloc"}]]})


def test_the_checked_in_traces():
    paths = table.traces()
    assert len(paths) >= 12
    assert sum(map(os.path.getsize, paths)) < 3 << 20
    for path in paths:
        assert trace.read(path).blocks > 500
