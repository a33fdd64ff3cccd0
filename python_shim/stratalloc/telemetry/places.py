# SPDX-License-Identifier: Apache-2.0
"""Where a command writes: never where it reads, tried before it works.

UsageError says what cannot be meant.
"""

import os

from stratalloc._terminal.command import UsageError
from stratalloc._terminal.result_file import ResultFile


def _apart(option, output, *files):
    """UsageError where what is written would take the place of what is read."""
    for file in files:
        try:
            same = os.path.samefile(file, output)
        except OSError:
            continue  # one of them is not there
        if same:
            raise UsageError(f"{option} {output}: it is the file that is read, "
                             "which would be lost; give another name")


def place(output, *files):
    """Where a file is written to that is read from others."""
    if not output:
        raise UsageError("-o: the name is empty; give the name of a file")
    if output == "-":
        raise UsageError(
            "-o -: what is written there is whole or not there, which stdout "
            "cannot promise; give the name of a file (./- is one)")
    _apart("-o", output, *files)
    return output


def result_file(path, *files, beside=None):
    """--json as a ResultFile, or None.

    Args:
      files: what the command reads.
      beside: what else it writes.
    """
    if path is None:
        return None
    if not path:
        raise UsageError("--json: the name is empty; give the name of a file, "
                         "or - for stdout")
    if path != "-":
        _apart("--json", path, *files)
        if beside and os.path.realpath(path) == os.path.realpath(beside):
            raise UsageError(f"--json {path}: it is -o's file, too; give another "
                             "name")
    try:
        return ResultFile(path)
    except OSError as error:
        raise UsageError(f"--json {path}: nothing can be written there: "
                         f"{error.strerror}") from None
