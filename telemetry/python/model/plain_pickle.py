# SPDX-License-Identifier: Apache-2.0
"""Reads pickles that are data, whoever wrote them.

dict, list, tuple, str, int, float, bool and None, protocols 2 to 5; a pickle
that holds anything else is refused before any of it is read, so that nothing of
it can run. Every opcode is looked at: what memory a pickle takes is bounded by
its size (a memo entry is not larger than its place in the file; containers are
not denser than in any honest file).

Three looks are needed at each megabyte, two of them at C's speed: the runs of
opcodes of fixed size are one match of a regular expression.
"""

import io
import pickle
import re

from stratalloc.telemetry.errors import SnapshotError

# Opcodes of a fixed size that make no container and no memo entry by number;
# so many at once, since the expression remembers each.
_RUN = re.compile(
    rb"(?:[(eausN\x88\x89\x94]|[Khq].|M..|[Jj]....|\x95.{8}|G.{8}"
    rb"|\x8a(?:\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}"
    rb"|\x08.{8}|\x09.{9})){1,4096}", re.DOTALL)
_CONTAINERS = frozenset(b"]})t\x85\x86\x87")
_PUT = ord("r")
_UNICODE, _SHORT_UNICODE = ord("X"), 0x8c
_PROTOCOL = 0x80
_STOP = ord(".")

# Bytes of a file for each container in it, at least: honest snapshots have
# more than twenty.
_PER_CONTAINER = 4
_FREE_CONTAINERS = 4096


class _Data(pickle.Unpickler):
    """The opcodes that could call this were refused; should one be missed,
    there is no class here."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it names the class {module}.{name}")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it names an object outside of it")


def loads(data):
    """The value.

    Raises:
      SnapshotError: it is no such pickle; nothing of it was run.
    """
    _scan(data)
    try:
        return _Data(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError,
            TypeError, AttributeError, OverflowError, MemoryError,
            RecursionError) as error:
        raise SnapshotError(
            f"the pickle is damaged ({type(error).__name__}: {error}); write "
            "it anew, or take a copy that is whole") from None


def _scan(data):
    """Refuses what is no data, and what would take more memory than its size
    allows."""
    if data[:1] != b"\x80" or len(data) < 2 or not 2 <= data[1] <= 5:
        raise SnapshotError(
            "it is no pickle of protocol 2 to 5; torch.cuda.memory."
            "_dump_snapshot writes such files")
    at, size, containers = 2, len(data), 0
    most = size // _PER_CONTAINER + _FREE_CONTAINERS
    match = _RUN.match
    while at < size:
        run = match(data, at)
        if run is not None:
            at = run.end()
            continue
        code = data[at]
        if code in _CONTAINERS:
            containers += 1
            at += 1
        elif code == _SHORT_UNICODE:
            at += 2 + (data[at + 1] if at + 1 < size else 0)
        elif code == _UNICODE:
            at += 5 + int.from_bytes(data[at + 1:at + 5], "little")
        elif code == _STOP:
            return  # what stands behind it is not read either
        elif code == _PUT:
            if int.from_bytes(data[at + 1:at + 5], "little") > at:
                raise SnapshotError(
                    "the pickle asks for more memory than it can fill (memo "
                    f"entry at byte {at}); do not open it elsewhere either")
            at += 5
        elif _cut(data, at):
            at = size + 1
        else:
            raise SnapshotError(
                f"the pickle holds more than data (opcode {code:#04x} at byte "
                f"{at}) and could run code; snapshots of torch hold dicts, "
                "lists, texts and numbers alone: write it anew")
        if containers > most:
            raise SnapshotError(
                "the pickle holds more lists and dicts than any snapshot of "
                "its size; do not open it elsewhere either")
    raise SnapshotError(
        f"the pickle is cut off: {size} bytes are not all of it; copy it "
        "again, or write it anew")


_SIZES = {ord("K"): 2, ord("h"): 2, ord("q"): 2, ord("M"): 3, ord("J"): 5,
          ord("j"): 5, 0x95: 9, ord("G"): 9}


def _cut(data, at):
    """Is the opcode an honest one that the end of the file cuts?"""
    code = data[at]
    if code == 0x8a:
        length = data[at + 1] if at + 1 < len(data) else 0
        return length <= 9 and at + 2 + length > len(data)
    return code in _SIZES and at + _SIZES[code] > len(data)
