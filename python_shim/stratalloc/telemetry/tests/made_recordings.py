# SPDX-License-Identifier: Apache-2.0
"""Recordings made by hand in the format of telemetry/recording/recording_file.h."""

import json
import struct
import zlib

import numpy as np

from stratalloc.telemetry import model
from stratalloc.telemetry.model import Kind


def section(tag, held, check=None):
    return (struct.pack("<4sIQ", tag,
                        zlib.crc32(held) if check is None else check, len(held))
            + held + b"\0" * (-len(held) % 8))


def file_of(head, events, *more):
    """The format, written as telemetry/recording/recording_file.h says it."""
    held = head if isinstance(head, bytes) else json.dumps(head).encode()
    return (b"STRATREC" + struct.pack("<II", 1, 0) + b"".join(more)
            + section(b"HEAD", held) + section(b"EVNT", events.tobytes())
            + section(b"END.", b""))


def two_blocks():
    """(head, events): a device with one segment; a block is freed, one made."""
    events = np.zeros(5, model.EVENT)
    events["time"] = (10, 20, 20, 30, 40)
    events["kind"] = (Kind.SCOPE_ENTER, Kind.FREE_REQUESTED,
                      Kind.FREE_COMPLETED, Kind.ALLOC, Kind.MARK)
    events["address"] = (0, 4096, 4096, 8192, 0)
    events["bytes"] = (0, 500, 500, 1000, 0)
    events["aux"] = (0, 512, 512, 1024, 0)
    events["scope"] = (2, 2, 2, 2, 1)
    events["pool"] = (0, 1, 1, 1, 0)
    events["category"] = (0, 5, 5, 1, 0)
    events["site"] = (0, 1, 1, 20001, 0)

    def segment(*blocks):
        return {"address": 4096, "size": 8192, "stream": 0, "owner": [0, 0],
                "expandable": True, "small": True, "blocks": list(blocks)}

    head = {
        "started": 1_700_000_000_000_000_000, "duration": 100, "torn": False,
        "threads": [77], "names_of_threads": [[77, "python"]],
        "scopes": [[2, "Net.\U0001f600"]], "marks": [[1, "step 1"]],
        "sites": [[1, "a b.py:3 f"], [20001, "/l/c.py:2 g h", 20000, 1],
                  [20000, "a b.py:3 f", 0, 1]], "pools": [[1, "0 0 0 0"]],
        "overwritten": 0, "overhead_ns": 5, "about": {"command": ["x.py"]},
        "start": [{"index": 0, "capacity": 1 << 20, "order": 0,
                   "segments": [segment([4096, 512, 500, 3, 2, 5],
                                        [4608, 7680, 0, 0, 0, 0])],
                   "stats": {"allocated_bytes": [512, 512, 512, 0],
                             "reserved_bytes": [8192, 8192, 8192, 0]}}],
        "end": [{"index": 0, "capacity": 1 << 20, "order": 3,
                 "segments": [segment([4096, 4096, 0, 0, 0, 0],
                                      [8192, 1024, 1000, 3, 2, 1],
                                      [9216, 3072, 0, 0, 0, 0])],
                 "stats": {"allocated_bytes": [1024, 1024, 1024, 512]}}]}
    return head, events
