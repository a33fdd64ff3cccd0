# SPDX-License-Identifier: Apache-2.0
"""ResultFile: where a command's --json goes, tried before its job starts.

A job may run for hours; that its results cannot be written is found out first,
by making a file beside the target and taking it away again. Targets that are no
files (a pipe, /dev/fd/3) are written in place.

With "-" the JSON has stdout to itself: from here on whatever the job, its
libraries and its children print there goes to stderr.
"""

import errno
import json
import os
import sys

from stratalloc._terminal import pipes as _pipes


def opened_in_place(path):
    """A binary file of what is no regular file (a pipe, /dev/stdout). A pipe that
    nobody reads is an OSError, not waited for."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "nobody reads from this pipe",
                          path) from None
        raise
    os.set_blocking(handle, True)  # who reads slowly is waited for
    return open(handle, "wb")


class ResultFile:
    """Raises OSError if nothing can be written to `path`."""

    def __init__(self, path):
        self.on_stdout = path == "-"
        if self.on_stdout:
            sys.stdout.flush()
            self._descriptor = os.dup(1)
            os.dup2(2, 1)
            return
        self._path = os.path.abspath(path)  # the job may change its folder
        if os.path.isdir(self._path):
            raise IsADirectoryError(21, "it is a directory", path)
        self._in_place = (os.path.exists(self._path)
                          and not os.path.isfile(self._path))
        self._temporary = f"{self._path}.{os.getpid()}.tmp"
        if not self._in_place:
            open(self._temporary, "x", encoding="utf-8").close()
            os.unlink(self._temporary)

    def write(self, value):
        """False if it failed after all; stderr then has reason and results.
        UnreadError: the reader of stdout has left."""
        text = json.dumps(value, indent=2, sort_keys=False) + "\n"
        try:
            self._write(text)
        except OSError as error:
            if self.on_stdout and isinstance(error, BrokenPipeError):
                raise _pipes.UnreadError from None
            _pipes.note(
                f"stratalloc: the results could not be written to "
                f"{'stdout' if self.on_stdout else self._path} "
                f"({error.strerror}); here they are:\n{text.rstrip()}")
            return False
        return True

    def _write(self, text):
        if self.on_stdout:
            with open(self._descriptor, "w", encoding="utf-8",
                      closefd=False) as file:
                file.write(text)
        elif self._in_place:
            with opened_in_place(self._path) as file:
                file.write(text.encode())
        else:
            with open(self._temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self._temporary, self._path)
