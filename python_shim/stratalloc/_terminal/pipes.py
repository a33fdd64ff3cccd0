# SPDX-License-Identifier: Apache-2.0
"""Ends of commands whose output has no reader left, as in `… | head`.

Such a command ends without a word and with UNREAD, the code that a shell gives
a program that SIGPIPE ended. `run` keeps the code of the program, unless that
is 0 and the program's own output was not read to its end.
"""

import errno
import os
import select
import sys

UNREAD = 141  # 128 + SIGPIPE


class UnreadError(BrokenPipeError):
    """The reader of a command's own output has left."""

    def __init__(self):
        super().__init__(errno.EPIPE, os.strerror(errno.EPIPE))


def ended(function, *arguments):
    """What `function` returns, once what it printed is written.

    Raises:
      SystemExit: with UNREAD where the reader of stdout or stderr has left.
      BrokenPipeError: of another pipe or socket, as `function` raised it.
    """
    try:
        found = function(*arguments)
    except SystemExit as stop:  # argparse passes over what it cannot write
        if written() and not _has_left(sys.stdout) or stop.code:
            raise
    except BrokenPipeError as error:
        if (written() and not isinstance(error, UnreadError)
                and not any(map(_has_left, (sys.stdout, sys.stderr)))):
            raise
    else:
        if written():
            return found
    raise SystemExit(UNREAD)


def written():
    """Writes what stdout and stderr keep back. False where a reader has left
    before it had all; what is printed there from now on is discarded."""
    return all([_is_written(stream) for stream in (sys.stdout, sys.stderr)])


def note(text):
    """Prints a line on stderr, for a reader that may have left."""
    if sys.stderr is None:
        return
    try:
        # One write, also where Python does not buffer: processes share stderr.
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        pass


def _is_written(stream):
    try:
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except (AttributeError, OSError, ValueError):
        pass  # none, closed, or a disk that is full: Python says so itself
    return True


def _has_left(stream):
    """Whether it is a pipe without a reader, as far as that is known."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def _discard(stream):
    """Python writes what a stream keeps at its end, and complains then."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
