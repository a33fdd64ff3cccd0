# SPDX-License-Identifier: Apache-2.0
"""PlainPickler: pickles of data, protocol 4, written as they are made.

The opcodes are those that torch's web viewer knows; pickle.dump would need the
whole value in memory, and takes no iterator for a list.
"""

import struct


class Shared(list):
    """A list that is one object wherever it stands: written once."""

    __slots__ = ()


class PlainPickler:
    """dict, list, tuple of two, str, int, float, bool, None; iterators are
    lists. Texts and Shared lists are written once."""

    def __init__(self, file):
        self._write = file.write
        self._memo = {}  # text -> opcodes that fetch it
        self._shared = {}  # id -> (opcodes, the list, so that the id stays)
        self._count = 0

    def dump(self, value):
        self._write(b"\x80\x04")
        self._put(value)
        self._write(b".")

    def _put(self, value):
        if isinstance(value, (str, int, float, tuple, Shared)) or value is None:
            self._write(self._small(value))
        elif isinstance(value, dict):
            self._write(b"}")
            if value:
                self._write(b"(")
                for key, one in value.items():
                    self._write(self._small(key))
                    self._put(one)
                self._write(b"u")
        else:
            self._put_list(value)

    def _put_list(self, value):
        self._write(b"]")
        count, small = 0, self._small
        for one in value:
            if not count % 1000:
                self._write(b"e(" if count else b"(")
            count += 1
            if type(one) is dict and not any(
                    type(part) in (dict, list) for part in one.values()):
                self._write(b"}(" + b"".join(
                    [small(part) for pair in one.items() for part in pair])
                    + b"u" if one else b"}")
            else:
                self._put(one)
        if count:
            self._write(b"e")

    def _small(self, value):
        """Opcodes of a value that is in memory as a whole."""
        kind = type(value)
        if kind is str:
            found = self._memo.get(value)
            return found if found is not None else self._text(value)
        if kind is int:
            return _number(value)
        if value is None:
            return b"N"
        if kind is bool:
            return b"\x88" if value else b"\x89"
        if kind is Shared:
            found = self._shared.get(id(value))
            return found[0] if found else self._share(value)
        if kind is tuple and len(value) == 2:
            return b"".join(map(self._small, value)) + b"\x86"
        if kind is float:
            return b"G" + struct.pack(">d", value)
        if kind is dict:
            return b"}(" + b"".join(
                [self._small(part) for pair in value.items()
                 for part in pair]) + b"u"
        raise TypeError(f"{kind.__name__} is no data for PlainPickler")

    def _fetch(self):
        found = self._count
        self._count += 1
        return (b"h" + bytes([found]) if found < 256
                else b"j" + found.to_bytes(4, "little"))

    def _text(self, value):
        raw = value.encode("utf-8", "backslashreplace")
        self._memo[value] = self._fetch()
        if len(raw) < 256:
            return b"\x8c" + bytes([len(raw)]) + raw + b"\x94"
        return b"X" + len(raw).to_bytes(4, "little") + raw + b"\x94"

    def _share(self, value):
        fetch = self._fetch()
        body = b"]\x94"
        if value:
            body += b"(" + b"".join(map(self._small, value)) + b"e"
        self._shared[id(value)] = (fetch, value)
        return body


def _number(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw
