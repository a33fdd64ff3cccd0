# SPDX-License-Identifier: Apache-2.0
"""Where the sockets of live processes are: PID.sock in a folder of the user's.

The folder is $XDG_RUNTIME_DIR/stratalloc where that is the user's own and
closed to others, else /tmp/stratalloc-UID, which is refused unless it is: /tmp
is everybody's, and another user may have made it first. Whoever looks for
processes looks into both, since a program may have been started with another
environment; root into everybody's.

Standard library only. Any thread. RuntimeError: no folder can be trusted.
"""

import glob
import os
import re
import stat

_NAME = re.compile(r"([1-9]\d*)\.sock")
_LONGEST = 107  # bytes of a Unix socket's path: sun_path less its 0
_ROOM = len("/.2147483647.new")  # what a socket's name adds while it is made
_SHARED = "/tmp"  # not TMPDIR, which the two sides may see differently


def folder():
    """The folder that this process makes its socket in; made if need be.

    Raises RuntimeError, in a sentence, where there is none to be trusted."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    mine = os.path.join(runtime, "stratalloc")
    if (os.path.isabs(runtime) and _why_not(runtime) is None
            and len(os.fsencode(mine)) + _ROOM <= _LONGEST
            and _made(mine) is None):
        return mine
    shared = _shared(os.geteuid())
    reason = _made(shared)
    if reason is not None:
        raise RuntimeError(
            f"stratalloc: there is no folder for the socket of this process: "
            f"{shared} {reason}; set XDG_RUNTIME_DIR to a folder that is yours "
            "alone (mode 0700), or remove that one")
    return shared


def path(within, pid):
    return os.path.join(within, f"{pid}.sock")


def found(user=None):
    """[(pid, path)] of the sockets that `user` (a uid; the effective one) may
    read, whether or not somebody serves them, by pid."""
    user = os.geteuid() if user is None else user
    sockets = []
    for one in _folders(user):
        if user != 0 and _why_not(one, user) is not None:
            continue
        try:
            names = os.listdir(one)
        except OSError:
            continue
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None:
                sockets.append((int(match[1]), os.path.join(one, name)))
    return sorted(sockets)


def _folders(user):
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = [os.path.join(runtime, "stratalloc")] if os.path.isabs(
        runtime) else []
    folders += [f"/run/user/{user}/stratalloc", _shared(user)]
    if user == 0:
        folders += glob.glob("/run/user/*/stratalloc")
        folders += glob.glob(f"{_SHARED}/stratalloc-*")
    # One folder may have two names.
    return {os.path.realpath(one): one for one in folders
            if os.path.isdir(one)}.values()


def _shared(user):
    return f"{_SHARED}/stratalloc-{user}"


def _made(name):
    """None, or what is wrong with it, to stand behind its name."""
    try:
        os.mkdir(name, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot be made: {error.strerror}"
    return _why_not(name)


def _why_not(name, user=None):
    """Why a folder is not `user`'s alone, to stand behind its name; or None."""
    user = os.geteuid() if user is None else user
    try:
        found_ = os.lstat(name)
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(found_.st_mode):
        return "is no folder"
    if found_.st_uid != user:
        return f"belongs to another user (uid {found_.st_uid})"
    if found_.st_mode & 0o077:
        return (f"is open to others (mode {stat.S_IMODE(found_.st_mode):04o}, "
                "not 0700)")
    return None
