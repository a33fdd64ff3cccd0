# SPDX-License-Identifier: Apache-2.0
"""Single keys of a terminal, and the terminal as it was before, however the
program ends or is suspended.

    with Keyboard(sys.stdin, pause, resume) as keys:
        select.select([keys], [], [])
        keys.pressed()      # "q"; "tq" of who is quick; "" at the end

Main thread only, since it hears signals: one that ends the process does so by
an exception, SystemExit, so that whoever shows something can take it back.
`pause` and `resume` are called around a suspension (Ctrl-Z), which waits for the
end of `with keys.undisturbed()`: a stream in the middle of a write takes none
from a handler.
"""

import contextlib
import os
import signal
import termios
import tty

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Keyboard:

    def __init__(self, stream, pause, resume):
        self._descriptor = stream.fileno()
        self._pause, self._resume = pause, resume
        self._before = None
        self._handlers = {}
        self._busy = self._wanted = False

    def __enter__(self):
        self._before = termios.tcgetattr(self._descriptor)
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, _end)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP,
                                                       self._suspend)
        self._listen()
        return self

    def __exit__(self, *what):
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def fileno(self):
        return self._descriptor

    def pressed(self):
        """What was pressed, "" at the end of the file; blocks without a key."""
        return os.read(self._descriptor, 64).decode("ascii", "replace")

    def _listen(self):
        tty.setcbreak(self._descriptor)  # Ctrl-C stays a signal

    def _restore(self):
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    @contextlib.contextmanager
    def undisturbed(self):
        """Not nested. A suspension that was wanted meanwhile comes at its end."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._wanted:
            self._suspend(signal.SIGTSTP, None)

    def _suspend(self, number, frame):
        del frame
        self._wanted = self._busy
        if self._busy:
            return
        self._pause()
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Here again when it goes on.
        signal.signal(number, self._suspend)
        self._listen()
        self._resume()


def _end(number, frame):
    del frame
    raise SystemExit(128 + number)
