# SPDX-License-Identifier: Apache-2.0
"""Names: the tables of a Run (scopes, sites, pools), filled from a snapshot.

Equal frames of equal callers are one site. Lists of frames that are one object
in the snapshot, as torch shares them, are walked once.
"""

from stratalloc.telemetry import model
from stratalloc.telemetry.errors import SnapshotError

# Labels of what a move between tiers made, in histories of this allocator.
MOVES = {"evicted": model.EVICTED, "restored": model.RESTORED}
_DEEPEST = 1024  # frames of a stack
_LONGEST = 16384  # characters of a name
_POOLS = 1 << 16
# 128 characters for each 8 bytes of a file: a label that is a dict says more
# than its bytes, since pickle says a key twice by its number.
_PER_ROW = 128


class Names:
    """`left`: how many sites there may be; of text there may be _PER_ROW
    characters for each."""

    def __init__(self, left):
        self.scopes, self.sites, self.pools = (
            ["(no scope)"], [model.Site("", 0, "(not known)")],
            [model.Pool(0, 0)])
        self._scopes = {"(no scope)": 0}
        self._sites, self._pools, self._stacks = {}, {}, {}
        self._kept = []  # lists whose identity is a key of _stacks
        self._left = left
        self._texts, self._characters = {}, left * _PER_ROW

    def _kept_text(self, value):
        """The text of a name, each kept once: a file that says a long one over
        and over by its number would be many times its size in memory."""
        text = _text(value)[:_LONGEST]
        found = self._texts.get(text)
        if found is None:
            self._characters -= len(text)
            if self._characters < 0:
                raise SnapshotError("its names are longer than its size can "
                                    "hold; do not open it elsewhere either")
            found = self._texts[text] = text
        return found

    def scope(self, name):
        text = self._kept_text(name)
        found = self._scopes.get(text)
        if found is None:
            found = self._scopes[text] = len(self.scopes)
            self.scopes.append(text)
        return found

    def label(self, item, own=False):
        """The scope that an event's or a block's label is; 0: it has none.

        own: the file is one of ours, whose frames begin with the scope.
        """
        if moves(item):
            frames = item.get("frames")
            if own and isinstance(frames, (list, tuple)) and frames and (
                    isinstance(frames[0], dict)) and frames[0].get("line") == 0:
                return self.scope(frames[0].get("name", ""))
            return 0
        for key in ("user_metadata", "compile_context"):
            value = item.get(key)
            if value and value != "N/A":
                return self.scope(value)
        return 0

    def pool(self, device, stream, owner):
        if not isinstance(stream, int) or not 0 <= stream < 1 << 64:
            stream = 0
        if not (isinstance(owner, (tuple, list)) and len(owner) == 2
                and all(isinstance(one, int) and 0 <= one < 1 << 64
                        for one in owner)):
            owner = (0, 0)
        key = (device, stream, tuple(owner))
        found = self._pools.get(key)
        if found is None:
            if len(self.pools) >= _POOLS:
                raise SnapshotError(f"it has more than {_POOLS} streams and "
                                    "pools, which no program has")
            found = self._pools[key] = len(self.pools)
            self.pools.append(model.Pool(*key))
        return found

    def site(self, frames, own=False):
        """Of a list of frames, innermost first; 0: there are none.

        own: the file is one of ours, whose frames begin with one that repeats
          the scope.
        """
        if not frames or not isinstance(frames, (list, tuple)):
            return 0
        found = self._stacks.get(id(frames))
        if found is None:
            found = self._walk(frames, own)
            self._stacks[id(frames)] = found
            self._kept.append(frames)
        return found

    def _walk(self, frames, own):
        below = 0
        for frame in reversed(frames[:_DEEPEST]):
            if not isinstance(frame, dict):
                continue
            file, line, name = (frame.get("filename"), frame.get("line"),
                                frame.get("name"))
            line = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
            if own and frame is frames[0] and line == 0:
                continue
            key = (self._kept_text(file), line, self._kept_text(name), below)
            below = self._sites.get(key, 0)
            if not below:
                self._left -= 1
                if self._left < 0:
                    raise SnapshotError(
                        "it has more frames than its size can hold; do not "
                        "open it elsewhere either")
                below = self._sites[key] = len(self.sites)
                self.sites.append(model.Site(*key))
        return below


def moves(item):
    """The flags of an event that its label means, or 0."""
    label = item.get("user_metadata")
    return MOVES.get(label, 0) if isinstance(label, str) else 0


def _text(value):
    """One line of what a label is: text, number, or a dict of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{_flat(key)[:256]}={_flat(one)}"
                         for key, one in list(value.items())[:64])
    return _flat(value)


def _flat(value):
    return (str(value)[:1024] if isinstance(value, (str, int, float, bool))
            else "…" if value is not None else "")
