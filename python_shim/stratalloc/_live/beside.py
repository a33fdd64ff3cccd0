# SPDX-License-Identifier: Apache-2.0
"""A few live lines at the bottom of the terminal that a program writes to.

    strip = Beside.on(sys.stderr)   # None: there is no room, or no terminal
    ...                             # the program runs
    strip.close()

Everything above the strip is the terminal's scrolling region, so what the
program, its libraries and its children write stays theirs, byte for byte: it is
not taken through us, and scrolls above the strip. Each drawing is one write,
after which the cursor is where it was. A program that draws on the whole screen
itself will draw over the strip, which comes back a second later.

One daemon thread draws, once a second. A forked child has no strip. Who is
killed cannot take the region back; a shell that waits for that does.
"""

import contextlib
import os
import subprocess
import threading

from stratalloc._live import sample, view

LINES = 4
_LEAST = 8  # lines that the program keeps
_EVERY = 1.0  # seconds

_SAVE, _BACK = "\0337", "\0338"
# The whole screen scrolls again, and what is below the cursor is erased.
_NO_STRIP = f"{_SAVE}\033[r{_BACK}\033[J"


class Beside:

    @classmethod
    def on(cls, stream):
        """The strip, drawn from now on; None where it cannot be."""
        try:
            if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
                return None
            size = os.get_terminal_size(stream.fileno())
            if size.lines < LINES + _LEAST:
                return None
            return cls(os.dup(stream.fileno()))
        except (AttributeError, OSError, ValueError):
            return None

    def __init__(self, terminal):
        self._terminal, self._pid = terminal, os.getpid()
        os.set_inheritable(terminal, False)
        self._size, self._seen = None, view.View()
        self._keeper = _Keeper(terminal)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="stratalloc beside")
        self._thread.start()

    def close(self):
        """The terminal is the program's again; once, and not in a fork."""
        if self._stop.is_set() or os.getpid() != self._pid:
            return
        self._stop.set()
        self._thread.join(_EVERY * 2)
        with contextlib.suppress(OSError):
            os.write(self._terminal, _NO_STRIP.encode())
        self._keeper.close()
        os.close(self._terminal)

    def _run(self):
        with contextlib.suppress(OSError):  # the terminal has gone
            while not self._stop.is_set():
                self._look()
                self._draw()
                self._stop.wait(_EVERY)

    def _look(self):
        try:
            self._seen.add(sample.take(), {})
        except RuntimeError:
            pass  # a device that is lost; what was known stays

    def _draw(self):
        size = os.get_terminal_size(self._terminal)
        out = ""
        if size != self._size:
            self._size = size
            top = max(size.lines - LINES, 1)
            # Room below the cursor, in whatever column that is.
            out += (_NO_STRIP + "\033D" * LINES + f"\033[{LINES}A"
                    + f"{_SAVE}\033[1;{top}r{_BACK}")
        out += _SAVE
        for i, line in enumerate(self._seen.strip(size.columns)):
            out += f"\033[{size.lines - LINES + 1 + i};1H{line}\033[K"
        data = (out + _BACK).encode()
        if os.write(self._terminal, data) != len(data):
            self._size = None  # the end of it came to nobody: begin anew


class _Keeper:
    """Takes the strip away once this process has ended without doing so."""

    # Of no session and no parent: it hears no Ctrl-C, and a program that waits
    # for its children does not meet it. The pipe is its stdin, the terminal its
    # stdout: a shell need not know descriptors of two digits. What runs with &
    # has no stdin, hence 3.
    _SCRIPT = "exec 3<&0; ( read -r said <&3 || printf '{undo}' ) &"

    def __init__(self, terminal):
        self._write = None
        read, write = os.pipe()
        # printf's octal numbers have three digits.
        script = self._SCRIPT.format(undo=_NO_STRIP.replace("\033", "\\033"))
        try:
            subprocess.run(["/bin/sh", "-c", script], check=False, stdin=read,
                           stdout=terminal, stderr=subprocess.DEVNULL,
                           start_new_session=True)
            self._write = write
        except OSError:
            os.close(write)  # no shell: nobody will do it
        finally:
            os.close(read)

    def close(self):
        if self._write is None:
            return
        with contextlib.suppress(OSError):
            os.write(self._write, b"done\n")
        os.close(self._write)

