# SPDX-License-Identifier: Apache-2.0
"""Recorded traces, as the bridge's benchmarks take them.

The files are those of tests/system/replay, whose trace.py describes and writes them;
its trace_test holds this reader to the same result. Nothing but the standard
library. A file that is none is a ValueError.
"""

import json
import struct
import zlib

MALLOC, FREE, RECORD_STREAM, EMPTY_CACHE = range(4)
_OPERATION = struct.Struct("<BBHIQ")  # stratalloc_torch_operation
OPERATION_BYTES = _OPERATION.size
_MAGIC = b"STRATRC1"
_MOST_OPERATIONS = 1 << 24


class Trace:
    """`packed` operations, and how many blocks and streams they use."""

    def __init__(self, packed, blocks, streams):
        self.packed = packed
        self.blocks = blocks
        self.streams = streams


def pack(operations):
    """(kind, stream, block, size) each, as an array of the C structure."""
    return b"".join(_OPERATION.pack(kind, stream, 0, block, size)
                    for kind, stream, block, size in operations)


def read(path):
    """The Trace in a file."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return _read(content)
    except (ValueError, KeyError, TypeError, struct.error, zlib.error) as error:
        raise ValueError(f"stratalloc: {path} is no trace: {error}") from error


def _read(content):
    if content[:8] != _MAGIC:
        raise ValueError("it does not begin with STRATRC1")
    (length,) = struct.unpack_from("<I", content, 8)
    header = json.loads(content[12:12 + length])
    count, blocks = int(header["operations"]), int(header["blocks"])
    if not (header["version"] == 1 and 0 <= blocks <= count
            and count <= _MOST_OPERATIONS):
        raise ValueError("its header makes no sense")
    wanted = 6 * count + 8 * blocks
    decompress = zlib.decompressobj()
    columns = decompress.decompress(content[12 + length:], wanted + 1)
    if len(columns) != wanted or not decompress.eof:
        raise ValueError("it is truncated or damaged")
    kinds, streams = columns[:count], columns[count:2 * count]
    numbers = struct.unpack_from(f"<{count}I", columns, 2 * count)
    sizes = iter(struct.unpack_from(f"<{blocks}Q", columns, 6 * count))
    if kinds.count(MALLOC) != blocks:
        raise ValueError("its header announces another number of blocks")
    packed = pack((kind, stream, block, next(sizes) if kind == MALLOC else 0)
                  for kind, stream, block in zip(kinds, streams, numbers))
    return Trace(packed, blocks, max(streams, default=0) + 1)
