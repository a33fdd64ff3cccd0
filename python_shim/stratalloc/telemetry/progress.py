# SPDX-License-Identifier: Apache-2.0
"""How far long work on a file is: a bar on stderr, where a person looks.

Library code says what it goes through, `for row in over(rows, "writing")`, and
a command that has a terminal shows it, `with shown():`. Where nobody looks,
over() gives back what it was given and costs nothing. A bar comes when the
command has worked for AFTER seconds, and is gone when its loop ends, so that
what is printed afterwards stands alone.

Any thread; each sees the bars of its own context. Never raises: without rich,
or on a stream that breaks, there is no bar.
"""

import contextlib
import contextvars
import sys
import time

AFTER = 1.0  # seconds
EVERY = 0.1  # seconds from one look of a bar to its next
_PER_BAR = 200  # how often a loop looks at the clock

_BARS = contextvars.ContextVar("bars", default=None)


def over(iterable, what, total=None):
    """`iterable`, watched by whoever shows progress.

    Args:
      what: for people, "writing events".
      total: int, how many there are; None: len() of it.
    """
    bars = _BARS.get()
    return iterable if bars is None else bars.over(
        iterable, what, len(iterable) if total is None else total)


@contextlib.contextmanager
def shown(stream=None):
    """Bars on `stream` (stderr), if it is a terminal, until the block ends."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    bars = _Bars(stream)
    before = _BARS.set(bars)
    try:
        yield
    finally:
        _BARS.reset(before)
        bars.clear()


class _Bars:
    """Those of one command: none for its first second."""

    def __init__(self, stream):
        self._stream, self._next = stream, time.monotonic() + AFTER
        self._rich = None  # while a bar is there
        self._open = 0

    def over(self, iterable, what, total):
        every = max(1, total // _PER_BAR)
        bar = None
        try:
            for done, one in enumerate(iterable):
                if done % every == 0:
                    bar = self._tell(bar, what, done, total)
                yield one
        finally:
            self._end(bar)

    def _tell(self, bar, what, done, total):
        now = time.monotonic()
        if now < self._next:
            return bar
        self._next = now + EVERY
        with contextlib.suppress(OSError, ValueError):
            if self._rich is None:
                self._rich = _started(self._stream)
            if self._rich is False:
                return bar
            if bar is None:
                self._open += 1
                bar = self._rich.add_task(what, total=total)
            self._rich.update(bar, completed=done, refresh=True)
        return bar

    def _end(self, bar):
        if bar is None or not self._rich:
            return
        self._open -= 1
        self._rich.remove_task(bar)
        if not self._open:
            self.clear()

    def clear(self):
        if self._rich:
            with contextlib.suppress(OSError, ValueError):
                self._rich.stop()
        self._rich = None


def _started(stream):
    """rich's bars on the stream; False without rich, or on a terminal that can
    take nothing back."""
    from stratalloc._terminal import command as _command

    try:
        console = _command.console(stream)
        from rich import progress
    except (ImportError, _command.CannotRunError):
        return False
    if console.is_dumb_terminal:
        return False
    made = progress.Progress(
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeRemainingColumn(),
        console=console, transient=True, auto_refresh=False,
        redirect_stdout=False, redirect_stderr=False)
    made.start()
    return made
