# SPDX-License-Identifier: Apache-2.0
"""Findings: what a check has seen, told once per kind and not too often."""

from stratalloc.telemetry import finite

MOST = 20  # findings told of one file

class Findings(list):
    """At most MOST texts; how many more there were is the last one."""

    def __init__(self):
        super().__init__()
        self._more = 0

    def add(self, what):
        if len(self) < MOST:
            self.append(str(what)[:500])
        else:
            self._more += 1

    def done(self):
        return list(self) + ([f"and {self._more} more"] if self._more else [])


def load_json(path):
    """(value, None) or (None, [what is wrong])."""
    with open(path, "rb") as file:
        raw = file.read()
    if raw[:2] == b"\x1f\x8b":
        raw, wrong = unzipped(raw)
        if wrong:
            return None, [wrong]
    try:
        return finite.loads(raw), None
    except (ValueError, RecursionError, MemoryError) as error:
        return None, [f"it is no JSON: {type(error).__name__}: "
                      f"{str(error)[:200]}"]


_MOST_UNZIPPED = 1 << 31


def unzipped(raw):
    """(bytes, None) or (b"", what is wrong); a bomb is not unpacked."""
    import zlib

    unpack = zlib.decompressobj(31)
    try:
        found = unpack.decompress(raw, min(_MOST_UNZIPPED,
                                           1100 * len(raw) + 1024))
    except zlib.error as error:
        return b"", f"it is no gzip file: {error}"
    if not unpack.eof:
        return b"", "the gzip file is cut off, or too large unpacked"
    return found, None


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)
