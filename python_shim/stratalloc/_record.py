# SPDX-License-Identifier: Apache-2.0
"""`run --record FILE`: the recording of a whole program.

While the program runs its events are in FILE.running, which outlives a SIGKILL:
`stratalloc recover FILE.running -o FILE` makes a recording of that. When the
program ends, be it by an exception, FILE is written and FILE.running goes.

Of this process alone: children that the program starts record nothing.
"""

import os
import sys

from stratalloc import _command
from stratalloc import _core

_SUFFIX = ".running"


class Recording:
    """Begins when it is made. Raises UsageError if FILE cannot be written."""

    def __init__(self, path, redact):
        self._path = os.path.abspath(path)  # the program may change its folder
        self._redact = redact
        self._running = self._path + _SUFFIX
        if os.path.isdir(self._path):
            raise _command.UsageError(f"--record {path}: it is a directory")
        if os.path.exists(self._running):
            raise _command.UsageError(
                f"--record {path}: {self._running} is there, from a program "
                f"that still runs or was killed; `stratalloc recover "
                f"{self._running} -o OTHER` saves what it has, then remove it")
        try:
            self._number = _core.begin_recording(self._running)
        except (ValueError, RuntimeError) as error:
            raise _command.UsageError(f"--record {path}: {error}") from None

    def end(self):
        """False if the file could not be written; stderr says why then."""
        from stratalloc import _trace

        try:
            _core.write_recording(self._number, self._path, _trace.about(),
                                  self._redact, over=True)
        except (ValueError, RuntimeError) as error:
            print(f"stratalloc: --record: {error}; what was recorded is in "
                  f"{self._running}: `stratalloc recover {self._running} -o "
                  "FILE`", file=sys.stderr)
            return False
        os.unlink(self._running)
        return True
