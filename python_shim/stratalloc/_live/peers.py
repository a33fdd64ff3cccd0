# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket, as the kernel says.

Standard library only. Never raises but OSError, of a socket that is broken.
"""

import os
import socket
import struct
import typing

_CREDENTIALS = struct.Struct("3i")


class Peer(typing.NamedTuple):
    """pid is 0 for a process that this one cannot see (another container)."""

    pid: int
    uid: int


def of(connected):
    """The Peer of a connected socket: who connected, or who listened."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                               _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid)


def may_read(reader, owner):
    """May a process of uid `reader` read one of uid `owner`?"""
    return reader in (owner, 0)


def user(uid):
    """For people: the user's name, where the machine knows one."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def lives(pid):
    """Is there such a process, be it somebody else's?"""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
