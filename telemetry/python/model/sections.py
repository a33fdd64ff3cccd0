# SPDX-License-Identifier: Apache-2.0
"""The sections of a recording: its head and its events, as they were written.

Format: telemetry/recording/recording_file.h.
Sizes are held against the file and against what memory there is before memory
is taken, every section against its checksum.
"""

import contextlib
import io
import os
import struct
import zlib

import numpy as np

from stratalloc.telemetry import finite, gzipped, model
from stratalloc.telemetry.errors import TelemetryError
from stratalloc.telemetry.regular import opened

MAGIC = b"STRATREC"
VERSION = 1
_AREA_MAGIC = b"STRATRNG"
_SECTION = struct.Struct("<4sIQ")
# Of the head: a model of 262144 scopes has 64 MiB of names.
_MOST_HEAD = 1 << 30
_COPIES = 2  # of the events: as they were read, and as they are worked on
_GROUP = "/sys/fs/cgroup/memory.max"


class RecordingError(TelemetryError):
    """A file is no recording, or not a whole one."""


def error(path, why, then):
    return RecordingError(f"{path} is not a recording that can be read: {why}; "
                          f"{then}")


def read(path):
    """(head, events): a dict and a column of model.EVENT that nobody has
    looked at.

    Raises RecordingError, and OSError if the file cannot be read.
    """
    found = _found(path)
    if b"HEAD" not in found or len(found.get(b"EVNT", b"")) % 48:
        raise error(path, "a section is missing or of a wrong length",
                    "it is damaged; record again")
    try:
        head = finite.loads(found[b"HEAD"])
    except (ValueError, RecursionError) as why:
        raise error(path, f"its head is no JSON ({why})",
                    "it is damaged; record again") from None
    if not isinstance(head, dict):
        raise error(path, "its head is no JSON object",
                    "it is damaged; record again")
    return head, np.frombuffer(found.get(b"EVNT", b""), model.EVENT).copy()


def _found(path):
    """tag -> bytes of the sections that this version knows."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(2) == gzipped.MAGIC:
            file.seek(0)
            file = _expanded(file.read(size), path)
            size = len(file.getbuffer())
        file.seek(0)
        _begin(file, path)
        found = {}
        while True:
            tag, check, length = _SECTION.unpack(
                _exactly(file, _SECTION.size, path))
            if length > size - file.tell():
                raise _truncated(path)
            if tag == b"END.":
                return found
            if tag not in (b"HEAD", b"EVNT"):  # of a later version
                file.seek(length + -length % 8, os.SEEK_CUR)
                continue
            _room(path, tag, length)
            held = _exactly(file, length, path)
            if zlib.crc32(held) != check:
                raise error(path, f"the bytes of its section {tag.decode()} "
                            "are not what was written",
                            "copy it again, or record again")
            found[tag] = held
            file.seek(-length % 8, os.SEEK_CUR)


def _expanded(data, path):
    try:
        return io.BytesIO(gzipped.unpacked(data, _memory() // _COPIES))
    except TelemetryError as why:
        raise RecordingError(
            f"{path} is not a recording that can be read: {why}") from None


def _begin(file, path):
    start = file.read(16)
    if start[:8] == _AREA_MAGIC:
        raise error(path, "it is the file of event rings of a process that is "
                    "running or was killed",
                    f"`stratalloc recover {path} -o FILE` makes a recording "
                    "of it")
    if len(start) < 16 or start[:8] != MAGIC:
        raise error(path, "it does not begin with STRATREC",
                    "give a file that `stratalloc run --record` wrote")
    version = struct.unpack("<I", start[8:12])[0]
    if version != VERSION:
        raise error(path, f"its version is {version}, and this stratalloc "
                    f"reads version {VERSION}", "update stratalloc")


def _room(path, tag, length):
    """A file may have holes: its size is no proof that somebody wrote it."""
    if tag == b"HEAD" and length > _MOST_HEAD:
        raise error(path, f"its head claims {length} bytes",
                    "it is damaged; record again")
    memory = _memory()
    if tag == b"EVNT" and length * _COPIES > memory:
        raise error(path, f"its events claim {length} bytes, and of the "
                    f"{memory} bytes of memory here they would take "
                    f"{length * _COPIES}",
                    "record again if it is damaged, or read it on a machine "
                    "with more")


def _memory():
    """Bytes that this process could have at most."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no group, or "max"
        with open(_GROUP, encoding="ascii") as file:
            found = min(found, int(file.read()))
    return found


def _exactly(file, length, path):
    held = file.read(length)
    if len(held) != length:
        raise _truncated(path)
    return held


def _truncated(path):
    return error(path, "it ends in the middle (truncated)",
                 "copy it again, or record again")
