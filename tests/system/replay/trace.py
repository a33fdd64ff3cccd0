# SPDX-License-Identifier: Apache-2.0
"""The file of a recorded trace: written, read and validated here.

    8 bytes   "STRATRC1"
    4 bytes   length of the header, little endian
    header    JSON: version, source, card, torch, operations, blocks, streams
    the rest  zlib: kinds (u8), streams (u8), blocks (u32), sizes (u64; mallocs
              only), one column after the other, little endian

A reader trusts nothing: every malformed file is a TraceError that says what is
wrong with it.
"""

import json
import struct
import zlib

import numpy

MAGIC = b"STRATRC1"
MALLOC, FREE, RECORD_STREAM, EMPTY_CACHE = range(4)
OPERATION = numpy.dtype([
    ("kind", "u1"), ("stream", "u1"), ("unused", "<u2"), ("block", "<u4"),
    ("size", "<u8"),
])
_MOST_OPERATIONS = 1 << 26
_LARGEST_BLOCK = 1 << 44


class TraceError(ValueError):
    """A file that is no trace, or a trace that makes no sense."""


class Trace:
    """`header`, a dict, and `operations`, an array of OPERATION."""

    def __init__(self, header, operations):
        self.header = header
        self.operations = operations
        self.blocks, self.streams = check(operations)


def check(operations):
    """(blocks, streams) of operations that make sense; TraceError otherwise."""
    kind, block = operations["kind"], operations["block"]
    if not len(operations):
        raise TraceError("the trace has no operations")
    if kind.max() > EMPTY_CACHE:
        raise TraceError(f"operation of unknown kind {kind.max()}")
    mallocs = numpy.flatnonzero(kind == MALLOC)
    blocks = len(mallocs)
    if not (block[mallocs] == numpy.arange(blocks)).all():
        raise TraceError("blocks are not numbered in the order of mallocs")
    sizes = operations["size"][mallocs]
    if blocks and (sizes.max() > _LARGEST_BLOCK or sizes.min() == 0):
        raise TraceError("a block of 0 bytes or of more than 16 TiB")
    uses = numpy.flatnonzero((kind == FREE) | (kind == RECORD_STREAM))
    if len(uses) and (not blocks or block[uses].max() >= blocks):
        raise TraceError("a block is used that was never allocated")
    if len(uses) and (mallocs[block[uses]] > uses).any():
        raise TraceError("a block is used before it is allocated")
    frees = numpy.flatnonzero(kind == FREE)
    freed_at = numpy.full(blocks, len(operations))
    freed_at[block[frees]] = frees
    if len(numpy.unique(block[frees])) != len(frees):
        raise TraceError("a block is freed twice")
    records = numpy.flatnonzero(kind == RECORD_STREAM)
    if (freed_at[block[records]] < records).any():
        raise TraceError("a block is used after it was freed")
    return blocks, int(operations["stream"].max()) + 1


def write(path, header, operations):
    """Writes a trace that read() accepts."""
    blocks, streams = check(operations)
    header = dict(header, version=1, operations=len(operations), blocks=blocks,
                  streams=streams)
    text = json.dumps(header, sort_keys=True).encode()
    mallocs = operations["kind"] == MALLOC
    columns = b"".join((
        operations["kind"].tobytes(), operations["stream"].tobytes(),
        operations["block"].tobytes(), operations["size"][mallocs].tobytes(),
    ))
    with open(path, "wb") as file:
        file.write(MAGIC + struct.pack("<I", len(text)) + text
                   + zlib.compress(columns, 9))


def _header(content):
    if content[:8] != MAGIC:
        raise TraceError("not a trace: it does not begin with STRATRC1")
    if len(content) < 12:
        raise TraceError("truncated: no header")
    length = struct.unpack("<I", content[8:12])[0]
    if len(content) < 12 + length:
        raise TraceError("truncated: the header is incomplete")
    try:
        header = json.loads(content[12:12 + length])
    except ValueError as error:
        raise TraceError(f"the header is no JSON: {error}") from error
    if not isinstance(header, dict) or header.get("version") != 1:
        raise TraceError("the header has another version than 1")
    for name in ("operations", "blocks", "streams"):
        value = header.get(name)
        if type(value) is not int or not 0 <= value <= _MOST_OPERATIONS:
            raise TraceError(f"the header's {name} is {value!r}")
    return header, content[12 + length:]


def read(path):
    """The Trace in a file; TraceError if it is not one."""
    with open(path, "rb") as file:
        header, packed = _header(file.read())
    count, blocks = header["operations"], header["blocks"]
    wanted = 6 * count + 8 * blocks
    decompress = zlib.decompressobj()
    try:
        # One byte more than wanted: a bomb is never unpacked.
        columns = decompress.decompress(packed, wanted + 1)
    except zlib.error as error:
        raise TraceError(f"the operations cannot be unpacked: {error}") from error
    if len(columns) != wanted or not decompress.eof:
        raise TraceError(f"the operations are not the {wanted} bytes that the "
                         "header announces: truncated or damaged")
    operations = numpy.zeros(count, OPERATION)
    operations["kind"] = numpy.frombuffer(columns, "u1", count)
    operations["stream"] = numpy.frombuffer(columns, "u1", count, count)
    operations["block"] = numpy.frombuffer(columns, "<u4", count, 2 * count)
    mallocs = operations["kind"] == MALLOC
    if mallocs.sum() != blocks:
        raise TraceError("the header announces another number of blocks")
    operations["size"][mallocs] = numpy.frombuffer(
        columns, "<u8", blocks, 6 * count)
    trace = Trace(header, operations)
    if trace.streams != header["streams"]:
        raise TraceError("the header announces another number of streams")
    return trace
