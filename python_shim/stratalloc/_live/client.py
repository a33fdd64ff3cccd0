# SPDX-License-Identifier: Apache-2.0
"""The other end of the socket: which processes can be seen, and what they say.

Every question is a connection of its own, so whether the process is still there
is asked each time. The server must be the process that the socket is named
after and belong to this user, unless this is root. Nothing that it answers is
believed to be well formed: a sample that is returned has the shape of one.

Standard library only. What goes wrong is an AttachError, a sentence; Ended is
one: the process is no more.
"""

import contextlib
import errno
import json
import os
import select
import socket
import time

from stratalloc._live import peers, protocol, shape, socket_path
from stratalloc._rendering import table as _table

PATIENCE = 5.0  # seconds until an answer is called late


class AttachError(Exception):
    """A sentence: why a process cannot be seen."""


class Ended(AttachError):
    """It was there, and is no more."""


class Late(AttachError):
    """It is there and has not answered."""


class Question:
    """One sample that was asked for. Nothing but wait() blocks; fileno() is for
    select. One that is Late is asked no second time: it is still on its way,
    and each further connection would fill the process's queue."""

    def __init__(self, pid, path):
        self._pid, self._path = pid, path
        self._began = time.monotonic()
        self._until = self._began + PATIENCE
        self._answer = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            try:
                self._socket.connect(path)
            except OSError as error:
                raise self._failed(error) from None
            self._check()
            with contextlib.suppress(OSError):
                # A refusal is there before it is asked for.
                self._socket.send(protocol.REQUEST, socket.MSG_NOSIGNAL)
        except BaseException:
            self.close()
            raise

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        self._socket.close()

    def wait(self):
        """The sample; Late after each PATIENCE seconds without it."""
        while True:
            found = self.advance()
            if found is not None:
                return found
            select.select([self], [], [],
                          max(self._until - time.monotonic(), 0))

    def advance(self):
        """The sample, or None as long as it is on its way. Late once each
        PATIENCE seconds."""
        try:
            some = self._socket.recv(1 << 16)
        except BlockingIOError:
            now = time.monotonic()
            if now < self._until:
                return None
            self._until = now + PATIENCE
            raise Late(f"process {self._pid} has not answered for "
                       f"{now - self._began:.0f} s: it is stopped, or keeps "
                       "Python from running its threads") from None
        except OSError:
            some = b""
        self._answer += some
        if len(self._answer) > protocol.LONGEST_ANSWER:
            raise AttachError(f"process {self._pid} answers more than an "
                              "answer may be; it is no stratalloc of this "
                              "protocol")
        if not self._answer.endswith(b"\n"):
            if some:
                return None
            raise self._gone()
        return _read(self._pid, self._answer)

    def _check(self):
        """AttachError unless it is served by who it should be."""
        who, me = peers.of(self._socket), os.geteuid()
        if not peers.may_read(me, who.uid):
            raise AttachError(
                f"{self._path} is served by {peers.user(who.uid)}, and you are "
                f"{peers.user(me)}: it was not asked anything")
        # 0: of another container; its numbers are not ours.
        if who.pid not in (0, self._pid):
            raise AttachError(
                f"{self._path} is served by process {who.pid}, which is not "
                "the one that it is named after: it was not asked anything")

    def _failed(self, error):
        if error.errno == errno.EAGAIN:  # the queue is full
            return Late(f"process {self._pid} does not take connections: it is "
                        "stopped, or many ask")
        if error.errno in (errno.EACCES, errno.EPERM):
            return AttachError(_of_another_user(self._pid) or (
                f"{self._path} may not be opened: {error.strerror}"))
        if error.errno == errno.ECONNREFUSED:
            if not peers.lives(self._pid):
                removed = ("; it was removed now"
                           if socket_path.remove(self._path) else "")
                return Ended(f"process {self._pid} has ended without removing "
                             "its socket, as one that is killed does"
                             + removed)
            return AttachError(
                f"process {self._pid} runs, and nobody serves its socket: it "
                "has become another program (exec), or its number is a new "
                "process's")
        return self._gone()

    def _gone(self):
        if not peers.lives(self._pid):
            return Ended(f"process {self._pid} has ended")
        return Ended(f"process {self._pid} runs, and does not serve any more: "
                     "it ends, or has become another program (exec)")


def ask(pid, path):
    """The sample of a process; waits for it, PATIENCE seconds at most."""
    with contextlib.closing(Question(pid, path)) as question:
        return question.wait()


def _read(pid, answer):
    """The sample; AttachError unless it is one. No sentence of it, and nothing
    else that the process says, moves a cursor."""
    try:
        values = json.loads(answer)
        version = values["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if type(version) is not int:  # True is one, to isinstance
        raise AttachError(f"process {pid} answers what is no answer of this "
                          "protocol")
    if version != protocol.VERSION:
        raise AttachError(
            f"process {pid} answers in version {version} of the protocol, and "
            f"this is {protocol.VERSION}: use the `stratalloc top` of the "
            "package that it runs with")
    if "error" in values:
        raise AttachError(_table.printable(str(values["error"])))
    wrong = shape.wrong(values)
    if wrong is not None:
        raise AttachError(
            f"process {pid} answers what is no sample of this protocol: "
            f"{wrong} is missing or of another type; use the `stratalloc top` "
            "of the package that it runs with")
    return values


def path_of(pid):
    """The path of a process's socket; AttachError says why there is none."""
    for number, path in socket_path.found():
        if number == pid:
            return path
    if not peers.lives(pid):
        raise AttachError(f"there is no process {pid}")
    raise AttachError(_of_another_user(pid) or (
        f"process {pid} cannot be seen: it does not use stratalloc with the "
        "setting live:on, or has not used CUDA yet; start it with `stratalloc "
        "run --live`, or with STRATALLOC=1 STRATALLOC_CONF=live:on"))


def all_of_them():
    """[(pid, path, sample)] of the processes that answer, and the sentences of
    those that do not. What dead ones of this user left is removed."""
    there, silent = [], []
    for pid, path in socket_path.found():
        try:
            there.append((pid, path, ask(pid, path)))
        except Ended:
            continue
        except AttachError as error:
            silent.append(str(error))
    return there, silent


def _of_another_user(pid):
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    me = os.geteuid()
    if peers.may_read(me, owner):
        return None
    return (f"process {pid} belongs to {peers.user(owner)}, and you are "
            f"{peers.user(me)}; its owner and root may look")
