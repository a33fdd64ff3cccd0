# SPDX-License-Identifier: Apache-2.0
"""unpacked(): the bytes of a file that may be packed with gzip.

A file is known by its first bytes, whatever its name is. How far gzip expands
is bounded, so that no file takes memory out of proportion to its size.
"""

import zlib

from stratalloc.telemetry.errors import TelemetryError

MAGIC = b"\x1f\x8b"
_TIMES = 200  # honest files are packed to a hundredth at most
_FREE = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS


def begins(data):
    """The first 8 bytes of what a file expands to whose beginning `data` is."""
    try:
        return zlib.decompressobj(_GZIP).decompress(data, 8)
    except zlib.error:
        return b""


def unpacked(data, most_bytes):
    """The bytes; those of gzip expanded.

    Raises:
      TelemetryError: it is no gzip that can be expanded, or one of too much.
    """
    if data[:2] != MAGIC:
        return data
    most = min(most_bytes, len(data) * _TIMES + _FREE)
    parts, room = [], most
    while data:
        one = zlib.decompressobj(_GZIP)
        try:
            parts.append(one.decompress(data, room + 1))
        except zlib.error as error:
            raise TelemetryError(f"its gzip is damaged ({error}); copy it "
                                 "again, or unpack it") from None
        room -= len(parts[-1])
        if room < 0:
            raise TelemetryError(
                f"its gzip expands to more than {most} bytes, which no recording "
                "of its size does; unpack it with gunzip if it is yours")
        if not one.eof:
            raise TelemetryError("its gzip is cut off; copy it again")
        data = one.unused_data.lstrip(b"\0")  # of another member
    return b"".join(parts)
