# SPDX-License-Identifier: Apache-2.0
"""Where the sockets of live processes are: PID.sock in a folder of the user's.

The folder is $XDG_RUNTIME_DIR/stratalloc where that is the user's own and
closed to others, else /tmp/stratalloc-UID, which is refused unless it is: /tmp
is everybody's, and another user may have made it first. Whoever looks for
processes looks into both, since a program may have been started with another
environment; root into everybody's, each of which must be that user's own as
well. Nothing is followed that is a link, and nobody, root neither, removes what
is another user's.

Standard library only. Any thread. RuntimeError: no folder can be trusted.
"""

import glob
import os
import re
import stat

_NAME = re.compile(r"([1-9]\d*)\.sock")
_LONGEST = 107  # bytes of a Unix socket's path: sun_path less its 0
_ROOM = len("/.2147483647.new")  # what a socket's name adds while it is made
_RUN = "/run/user"
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
    sockets = set()
    for one, owner in _folders(user):
        if _why_not(one, owner) is not None:
            continue
        try:
            names = os.listdir(one)
        except OSError:
            continue
        for name in names:
            match = _NAME.fullmatch(name)
            where = os.path.join(one, name)
            if match is not None and _is_socket(where, owner):
                sockets.add((int(match[1]), where))
    return sorted(sockets)


def remove(name):
    """Removes a socket that nobody serves. False where it is none, or it or its
    folder is not this user's alone; then it stays."""
    user = os.geteuid()
    if _why_not(os.path.dirname(name), user) is not None or not _is_socket(
            name, user):
        return False
    try:
        os.unlink(name)
    except OSError:
        return False
    return True


def _folders(user):
    """{(folder, the uid that must own it)}, as far as names say."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    folders = {(f"{_RUN}/{user}/stratalloc", user), (_shared(user), user)}
    if os.path.isabs(runtime):
        # One folder may have two names.
        folders.add((os.path.join(os.path.realpath(runtime), "stratalloc"),
                     user))
    if user == 0:
        for pattern, at in ((f"{_RUN}/*/stratalloc", -2),
                            (f"{_SHARED}/stratalloc-*", -1)):
            for one in glob.glob(pattern):
                uid = one.split("/")[at].removeprefix("stratalloc-")
                if uid.isascii() and uid.isdecimal():
                    folders.add((one, int(uid)))
    return folders


def _is_socket(name, owner):
    try:
        found_ = os.lstat(name)
    except OSError:
        return False
    return stat.S_ISSOCK(found_.st_mode) and found_.st_uid == owner


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
