# SPDX-License-Identifier: Apache-2.0
"""target(): a file on its way, the user's alone, whole or not there."""

import contextlib
import gzip
import os
import tempfile

from stratalloc._terminal.result_file import opened_in_place


@contextlib.contextmanager
def target(path, mode=0o600):
    """A binary file to write to, which becomes `path` when the block ends and
    goes when it raises. What is no plain file (a pipe, /dev/stdout) is written
    in place.

    Args:
      mode: of the file, whatever the umask.

    Raises:
      OSError: it cannot be written; `filename` is `path`.
    """
    path = os.path.realpath(os.fspath(path))  # a link stays one
    if os.path.exists(path) and not os.path.isfile(path):
        with opened_in_place(path) as file:
            yield file
        return
    try:
        handle, beside = tempfile.mkstemp(  # 0600
            prefix="." + os.path.basename(path)[:64] + ".",
            dir=os.path.dirname(path))
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
    try:
        with open(handle, "wb", buffering=1 << 20) as file:
            os.fchmod(handle, mode)
            yield file
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


@contextlib.contextmanager
def zipped(path):
    """target() through gzip; the same bytes for the same run."""
    with target(path) as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0,
                           compresslevel=6) as out:
            yield out


def text(name):
    """A name as text that every encoder takes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def write_rows(file, rows, encode):
    """The elements of a JSON array, one at a time."""
    for i, row in enumerate(rows):
        file.write((("," if i else "") + encode(row)).encode())
