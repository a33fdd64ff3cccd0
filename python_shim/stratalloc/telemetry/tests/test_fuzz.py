# SPDX-License-Identifier: Apache-2.0
"""Files of every format, damaged at random: readers and checks tell what is
wrong, raise nothing else, and keep nothing.

`python test_fuzz.py COUNT SEED` does as many as one likes.
"""

import functools
import gc
import json
import pathlib
import pickle
import random
import sys
import tempfile

import pytest

import formats
import made_runs
import torch_shapes
from stratalloc.telemetry import identities, import_torch
from stratalloc.telemetry.errors import SnapshotError

_COUNT = 750  # of each kind of file, in CI
_INTERESTING = [b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f", b"\x80", b"}",
                b"]", b"[", b"{", b'"', b",", b"-", b"9" * 25, b"1e999",
                b"null", b"\\u0000", b"\xed\xa0\x80", b"\n", b".", b"(", b"u",
                b"r\xff\xff\xff\x7f", b"\x95", b"\x8c\xff", b"h\x00", b"2"]
_CHECKED = sorted(name for name, (_, form) in formats.WRITERS.items() if form)


@functools.cache
def _whole(name):
    if name == "torch.pickle":
        return pickle.dumps(torch_shapes.snapshot(), 4)
    if name == "torch.json":
        return json.dumps(torch_shapes.snapshot()).encode()
    with tempfile.TemporaryDirectory() as folder:
        return formats.export(made_runs.story(), name,
                              pathlib.Path(folder)).read_bytes()


def damaged(raw, chance):
    """The bytes, changed in one to eight places."""
    raw = bytearray(raw)
    for _ in range(chance.randrange(1, 9)):
        at = chance.randrange(len(raw) + 1)
        what = chance.randrange(6)
        some = raw[at:at + chance.randrange(1, 40)]
        if what == 0 and at < len(raw):
            raw[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            raw[at:at + len(some)] = b""
        elif what == 2:
            raw[at:at] = some * chance.randrange(1, 20)
        elif what == 3:
            raw[at:at + chance.randrange(8)] = chance.choice(_INTERESTING)
        elif what == 4:
            other = chance.randrange(len(raw) + 1)
            raw[other:other + len(some)] = some
        elif chance.random() < .3:
            del raw[at:]
    return bytes(raw)


def _read(raw):
    """A damaged snapshot is read, or refused with a reason."""
    try:
        run = import_torch.from_bytes(raw)
    except SnapshotError as error:
        assert 10 < len(str(error)) < 700
        return
    identities.check(run)


def fuzz(name, count, seed):
    chance = random.Random(f"{name} {seed}")
    raw = _whole(name)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        for _ in range(count):
            broken = damaged(raw, chance)
            try:
                if name in formats.WRITERS:
                    path.write_bytes(broken)
                    assert isinstance(formats.wrong(path), list)
                if "torch" in name or "snapshot" in name:
                    _read(broken)
            except Exception:
                kept = pathlib.Path(tempfile.gettempdir()) / ("fuzzed-" + name)
                kept.write_bytes(broken)
                print(f"the file is kept as {kept}", file=sys.stderr)
                raise


@pytest.mark.parametrize("name", ["torch.pickle", "torch.json", *_CHECKED])
def test_a_damaged_file_is_told_and_nothing_is_kept(name):
    fuzz(name, 50, 0)  # whatever is made once
    gc.collect()
    before = len(gc.get_objects())
    fuzz(name, _COUNT, 1)
    gc.collect()
    assert len(gc.get_objects()) < before + 2000


if __name__ == "__main__":
    for one in ["torch.pickle", "torch.json", *_CHECKED]:
        fuzz(one, int(sys.argv[1]), int(sys.argv[2]))
        print(one, "held", flush=True)
