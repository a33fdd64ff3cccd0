# SPDX-License-Identifier: Apache-2.0
"""Memory that was on the devices before a test began: how much, whose, and why
it lives; and what the test needed beside it.

What a fixture of a wider scope made counts as need of each test that uses it.
Every other block that lives when the test begins is not the test's: it was left
by an earlier one, for instance in the frames of a failed test. Where there are
such blocks the events of the test are recorded, so that the end of one of them
is no credit for what the test allocates later.
"""

import gc
import os
import tempfile
import types

import torch

from stratalloc._native import core as _core
from stratalloc._native import stack as _stack
from stratalloc._recording import trace as _trace
from stratalloc._reports import holders as _holders
from stratalloc.sizes import format_size

_KEPT = _stack.CATEGORIES.index("workspace")
_SHOWN = 3  # owners and frames in a message


def live():
    """(device, address) -> bytes of every allocated block."""
    if not _core.initialized():
        return {}
    found = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found[segment["device"], address] = block["size"]
            address += block["size"]
    return found


class Fixtures:
    """What the fixtures of wider scopes made and is still there."""

    def __init__(self):
        self._made = {}  # fixture definition -> {(device, address): bytes}

    def made(self, fixture, before, after):
        """Blocks of `after` that `before` has not are the fixture's."""
        self._made[fixture] = {key: size for key, size in after.items()
                               if before.get(key) != size}

    def forget(self, fixture):
        self._made.pop(fixture, None)

    def keep(self, blocks):
        """Only these live: an address may be another block's from now on."""
        for fixture, made in self._made.items():
            self._made[fixture] = {key: size for key, size in made.items()
                                   if blocks.get(key) == size}

    def blocks(self, fixtures):
        """The blocks of these fixtures."""
        found = {}
        for fixture in fixtures:
            found.update(self._made.get(fixture, {}))
        return found


class Before:
    """The blocks that were there when a test began, and the test's events.

    Attributes:
      blocks: (device, address) -> bytes, without workspaces, which stay for
        all tests, and without what the test's fixtures made.
    """

    def __init__(self, blocks, records):
        self.blocks, self._owners = {}, {}  # key -> (name, category)
        for (device, address), size in blocks.items():
            found = _core.placement(address)
            if found.category == _KEPT:
                continue
            self.blocks[device, address] = size
            self._owners[device, address] = (
                _core.scope_name(found.scope),
                _stack.CATEGORIES[max(found.category, 0)])
        self._number = (_core.begin_recording()
                        if records and (self.blocks or _anything_away())
                        else None)
        self._folder = None

    def __bool__(self):
        """Were the events of the test recorded?"""
        return self._folder is not None

    def end(self):
        """The test is over: what was recorded is kept until close()."""
        if self._number is None:
            return
        number, self._number = self._number, None
        self._folder = tempfile.TemporaryDirectory(prefix="stratalloc-")
        _core.write_recording(number, self._path(), _trace.about(), False,
                              over=True)

    def close(self):
        self.end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _path(self):
        return os.path.join(self._folder.name, "test")

    def own(self, mine):
        """[Holders], by device: what the test needed beside these blocks.

        Args:
          mine: the blocks of fixtures that the test uses.

        Raises ValueError with the reason where that is not known.
        """
        try:
            from stratalloc.telemetry import recording, replay
        except ImportError as error:
            raise ValueError(f"it needs numpy ({error})") from None
        run = recording.read(self._path())
        if run.dropped:
            raise ValueError(f"{run.dropped} events of the test were lost")
        return [_need(replay.Replay(run, device.index), mine)
                for device in run.devices if not device.tier]

    def text(self, mine, unknown=""):
        """How much is not the test's, whose it is, and which frames keep it; ""
        if there is none.

        Args:
          mine: the blocks of fixtures that the test uses.
          unknown: why it is not known what the test needed beside it.
        """
        others = {key: size for key, size in self.blocks.items()
                  if key not in mine}
        if not others:
            return ""
        owners = {}
        for key, size in others.items():
            name = "{} ({})".format(*self._owners[key])
            owners[name] = owners.get(name, 0) + size
        total = format_size(sum(others.values()))
        said = (f"up to {total} of it was there before the test began"
                if unknown else
                f"{total} that was there before the test began is not counted")
        said += f": {_first(owners)}"
        frames = _kept_by_frames(others)
        if frames:
            said += f"; tracebacks of exceptions keep it: {_first(frames)}"
        return said + (f"; how much is not known: {unknown}" if unknown else "")


def _first(sizes):
    """"a 3 MiB, b 1 MiB and 2 more": the largest."""
    rows = sorted(sizes.items(), key=lambda row: (-row[1], row[0]))
    text = ", ".join(f"{name} {format_size(size)}"
                     for name, size in rows[:_SHOWN])
    return text + (f" and {len(rows) - _SHOWN} more"
                   if len(rows) > _SHOWN else "")


def _anything_away():
    """Does a lower tier have memory, which may return during the test?"""
    return _core.initialized() and any(
        row["host"] or row["disk"]
        for device in range(torch.cuda.device_count())
        for row in _core.held(device)["rows"])


def _need(walked, mine):
    """Holders at the moment when most of the test's own was on the device."""
    import numpy as np

    rows, last = walked.rows, len(walked.run.events)
    own, of = np.zeros(len(rows), bool), {}
    for index in np.lexsort((rows["begin"], rows["address"])):
        row = rows[index]
        address = int(row["address"])
        if row["moved"]:  # the same block as before it left
            own[index] = of.get(address, (walked.index, address) in mine)
        elif row["begin"] < 0:
            own[index] = (walked.index, address) in mine
        else:
            own[index] = True
        of[address] = bool(own[index])
    own &= ~((rows["category"] == _KEPT) & (rows["asked"] >= last))
    changes = np.zeros(last + 1, "<i8")  # [0]: what was there at the start
    sizes = np.where(own, rows["size"], 0)
    np.add.at(changes, np.maximum(rows["begin"], -1) + 1, sizes)
    ended = rows["asked"] < last
    np.add.at(changes, rows["asked"][ended] + 1, -sizes[ended])
    moment = int(np.argmax(np.cumsum(changes))) - 1
    which = walked.live(moment)
    which = which[own[which]]
    held = {}
    for size, scope, category in zip(rows["size"][which].tolist(), *(
            column.tolist() for column in walked.owners(which, moment))):
        key = walked.run.scopes[scope], _stack.CATEGORIES[category]
        held[key] = held.get(key, 0) + size
    return _holders.Holders(sum(held.values()), "peak", walked.index, [
        _holders.Holder(*key, size, None, "device")
        for key, size in held.items()])


def _kept_by_frames(blocks):
    """"function (file:line)" -> bytes of these blocks that are in the local
    variables of frames which a traceback keeps."""
    found, seen = {}, set()
    for trace in gc.get_objects():
        if type(trace) is not types.TracebackType:
            continue
        frame = trace.tb_frame
        if id(frame) in seen:
            continue
        seen.add(id(frame))
        size = _bytes_of(frame.f_locals.values(), blocks, seen)
        if size:
            code = frame.f_code
            name = (f"{getattr(code, 'co_qualname', code.co_name)} ({os.path.basename(code.co_filename)}:"
                    f"{trace.tb_lineno})")
            found[name] = found.get(name, 0) + size
    return found


def _bytes_of(values, blocks, seen):
    from stratalloc._tiering import tiers as _tiers

    size = 0
    for value in values:
        try:
            named = _tiers.named(value)
        except Exception:  # pylint: disable=broad-except
            continue  # it names no memory
        for device, ranges in named.items():
            for address, _ in ranges:
                if (device, address) not in seen:
                    seen.add((device, address))
                    size += blocks.get((device, address), 0)
    return size
