# SPDX-License-Identifier: Apache-2.0
"""The scope stack in Python, for tests that run on CPU tensors alone.

The same twelve functions as stratalloc._native._scopes; it records what was
pushed, re-labelled and adopted, and counts a pop without a push. A scope owns
nothing.
"""

import threading

from stratalloc._native import stack as _stack


class FakeStack:
    def __init__(self):
        self.paths = [""]
        self.relabelled = []  # (address, bytes, path, category)
        self.adopted = []  # (address, path, category)
        self.pushed = []  # (path, category, lifetime), of all threads
        self.recategorized = []  # (path, category)
        self.extra_pops = 0
        self._local = threading.local()

    def _frames(self):
        if not hasattr(self._local, "frames"):
            self._local.frames = []
        return self._local.frames

    def push(self, scope, category, lifetime):
        self._frames().append((scope, category, lifetime))
        self.pushed.append((self.paths[scope], category, lifetime))

    def enter(self, scope):
        below = self.depth()
        self.push(scope, _stack.ACTIVATION, _stack.LIFETIME_TRANSIENT)
        return below

    def leave(self, below):
        del self._frames()[below:]

    def pop(self):
        frames = self._frames()
        if not frames:
            self.extra_pops += 1
            return False
        frames.pop()
        return True

    def current(self):
        frames = self._frames()
        return frames[-1] if frames else (0, 0, 0)

    def recategorize(self, scope, category):
        frames = self._frames()
        if not frames or frames[-1][0] != scope:
            return False
        frames[-1] = (scope, category, frames[-1][2])
        self.recategorized.append((self.paths[scope], category))
        return True

    def intern(self, path):
        if path not in self.paths:
            self.paths.append(path)
        return self.paths.index(path)

    def name(self, scope):
        return self.paths[scope] or "(no scope)"

    def owned(self, scope):
        return 0

    def relabel(self, address, size, scope, category):
        self.relabelled.append((address, size, self.paths[scope], category))
        return True

    def adopt(self, address, scope, category):
        self.adopted.append((address, self.paths[scope], category))
        return True

    # ---- for assertions --------------------------------------------------

    def depth(self):
        return len(self._frames())

    def top(self):
        scope, category, lifetime = self.current()
        return self.paths[scope], category, lifetime

    def stack(self):
        return [self.paths[frame[0]] for frame in self._frames()]

    def label(self, tensor):
        """(path, category) of the last re-label of this tensor, or None."""
        address = tensor.untyped_storage().data_ptr()
        for entry in reversed(self.relabelled):
            if entry[0] == address:
                return entry[2:]
        return None
