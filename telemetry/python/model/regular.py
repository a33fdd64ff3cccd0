# SPDX-License-Identifier: Apache-2.0
"""opened(): a file that somebody names, to be read.

Files are read more than once, and held against their size before memory is
taken; a pipe has no size, and whoever opens one waits for its writer for ever.
"""

import os
import stat

from stratalloc.telemetry.errors import TelemetryError

_WHAT = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device",
         stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def opened(path):
    """A binary file of what is regular; nothing is waited for.

    Raises:
      TelemetryError: it is a pipe, a device or a socket.
      OSError: it is a directory, or cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind in _WHAT:
            raise TelemetryError(
                f"{path} cannot be read: it is {_WHAT[kind]}, and a file is "
                "read more than once; write what comes from there to a file, "
                "and give that")
        return open(handle, "rb")  # a directory is refused here
    except BaseException as error:
        os.close(handle)
        if isinstance(error, OSError):
            raise type(error)(error.errno, error.strerror, path) from None
        raise
