# SPDX-License-Identifier: Apache-2.0
"""ResultFile: where a command's --json goes, tried before its job starts.

A job may run for hours; that its results cannot be written is found out first,
by making a file beside the target and taking it away again. Targets that are no
files (a pipe, /dev/fd/3) are written in place.

With "-" the JSON has stdout to itself: from here on whatever the job, its
libraries and its children print there goes to stderr.
"""

import json
import os
import sys


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
        """False if it failed after all; stderr then has reason and results."""
        text = json.dumps(value, indent=2, sort_keys=False) + "\n"
        try:
            self._write(text)
        except OSError as error:
            print(f"stratalloc: the results could not be written to "
                  f"{'stdout' if self.on_stdout else self._path} "
                  f"({error.strerror}); here they are:\n{text}",
                  file=sys.stderr, end="")
            return False
        return True

    def _write(self, text):
        if self.on_stdout:
            with open(self._descriptor, "w", encoding="utf-8",
                      closefd=False) as file:
                file.write(text)
        elif self._in_place:
            with open(self._path, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            with open(self._temporary, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self._temporary, self._path)
