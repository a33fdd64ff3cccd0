# SPDX-License-Identifier: Apache-2.0
"""The socket of this process, and the one daemon thread that answers there.

Off unless the setting `live` is on. serve() makes the socket at once,
serve_from_first_use() when the program first uses CUDA. A client is the owner
of the process or root (SO_PEERCRED), may ask one thing, and has seconds for it;
nobody waits for a client but this thread, and it computes ten samples a second
at most, however many ask.

A forked child closes what it inherits and has a socket of its own from its
first use of CUDA on. The end of the process removes the socket; one that is
killed, or becomes another program by exec, leaves it for `top` to find.

Nothing here ends or delays the program: what keeps it from being seen is a
warning of the logger.
"""

import atexit
import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time

from stratalloc._live import peers, protocol, sample, socket_path
from stratalloc._native import bridge as _bridge

_log = logging.getLogger("stratalloc")

CLIENTS = 8  # at a time
_WAITING = 64  # others, in the kernel's queue
TO_ASK = 2.0  # seconds that a client has for its line
TO_READ = 5.0  # and, from then on, for taking the answer
BETWEEN = 0.1  # seconds from one sample to the next
_AT_END = 2.0  # seconds that the end of the process waits for the thread

_lock = threading.Lock()
_server = None  # of this process
_prepared = False


def serve_from_first_use(torch):
    """From the first use of CUDA through us on, of this process or of a child
    that was forked before."""
    torch.cuda._lazy_call(_serve_if_ours)  # pylint: disable=protected-access


def _serve_if_ours():
    if _bridge.loaded() and _bridge.is_current():
        serve()


def serve():
    """From now on; once. The path of the socket, or None where there is none,
    and the logger says why."""
    global _server, _prepared
    with _lock:
        if _server is not None:
            return _server.path
        try:
            made = Server()
        except (OSError, RuntimeError) as error:
            text = str(error).removeprefix("stratalloc: ")
            _log.warning("stratalloc: this process cannot be seen by "
                         "`stratalloc top`: %s", text)
            return None
        if not _prepared:
            _prepared = True
            os.register_at_fork(after_in_child=_abandon)
        _server = made
        atexit.register(made.close)
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            # Those that were forked end without what atexit knows.
            from multiprocessing import util

            util.Finalize(None, made.close, exitpriority=-1)
        return made.path


def _abandon():
    """In a forked child: the socket is its parent's."""
    global _lock, _server
    _lock = threading.Lock()  # a thread that is not here may have held it
    server, _server = _server, None
    if server is not None:
        server.abandon()


class Server:
    """A socket that listens, and its thread. OSError or RuntimeError where it
    cannot be made."""

    def __init__(self, take=sample.take):
        self._pid, self._take = os.getpid(), take
        folder = socket_path.folder()
        self.path = socket_path.path(folder, self._pid)
        self._listener = _listening(folder, self.path)
        self._made = _identity(self.path)
        self._wake, self._woken = socket.socketpair()
        self._clients = {}  # file descriptor -> _Client
        self._next_sample = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True,
                                        name="stratalloc live")
        self._thread.start()

    def close(self):
        """Removes the socket; waits for the thread, seconds at most."""
        if self._closing or os.getpid() != self._pid:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            # Unless another process has taken the name.
            if _identity(self.path) == self._made:
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            self._wake.send(b"x", socket.MSG_NOSIGNAL)
        self._thread.join(_AT_END)

    def abandon(self):
        """In a forked child, which has the files but not the thread."""
        self._closing = True
        for one in (self._listener, self._wake, self._woken,
                    *(client.socket for client in self._clients.values())):
            with contextlib.suppress(OSError):
                one.close()

    # What follows runs on the thread.

    def _serve(self):
        try:
            while not self._closing and self._turn():
                pass
        except Exception as error:  # pylint: disable=broad-except
            # The program goes on; whoever connects is refused.
            _log.warning("stratalloc: this process cannot be seen by "
                         "`stratalloc top` any more: %r", error)
        for client in list(self._clients.values()):
            self._end(client)
        self._listener.close()

    def _turn(self):
        """Waits for something and does it; False if the program closed our
        files, as one that becomes a daemon does."""
        ready = dict(self._poll())
        if any(ready.get(one.fileno(), 0) & select.POLLNVAL
               for one in (self._listener, self._woken)):
            return False
        if self._closing:
            return False
        if self._listener.fileno() in ready:
            self._accept()
        for descriptor, client in list(self._clients.items()):
            if descriptor in ready:
                self._advance(client)
        self._answer()
        now = time.monotonic()
        for client in list(self._clients.values()):
            if now >= client.until:
                self._end(client)
        return True

    def _poll(self):
        # Made anew each time: a poll object has nothing that a fork shares, as
        # epoll has.
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if len(self._clients) < CLIENTS:
            poll.register(self._listener, select.POLLIN)
        deadlines = []
        for descriptor, client in self._clients.items():
            if client.asked and not client.answer:
                deadlines.append(self._next_sample)
            else:
                poll.register(descriptor, select.POLLOUT if client.answer
                              else select.POLLIN)
            deadlines.append(client.until)
        wait = None
        if deadlines:
            wait = max(min(deadlines) - time.monotonic(), 0) * 1000 + 1
        return poll.poll(wait)

    def _accept(self):
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # it has gone, or there are no more files
        connected.setblocking(False)
        client = _Client(connected, time.monotonic() + TO_ASK)
        self._clients[connected.fileno()] = client
        try:
            who = peers.of(connected)
        except OSError:
            return self._end(client)
        owner = os.geteuid()
        if not peers.may_read(who.uid, owner):
            client.tell(protocol.error(
                f"process {self._pid} belongs to {peers.user(owner)}, and you "
                f"are {peers.user(who.uid)}; its owner and root may look"))

    def _advance(self, client):
        try:
            over = client.send() if client.answer else client.receive()
        except BlockingIOError:
            return
        except OSError:
            over = True  # it has gone
        if over:
            self._end(client)

    def _answer(self):
        """One sample for all who asked by now."""
        asked = [one for one in self._clients.values()
                 if one.asked and not one.answer]
        if not asked or time.monotonic() < self._next_sample:
            return
        try:
            answer = protocol.line(self._take())
        except Exception as error:  # pylint: disable=broad-except
            answer = protocol.error(f"process {self._pid} could not be asked: "
                                    f"{error}")
        self._next_sample = time.monotonic() + BETWEEN
        for client in asked:
            client.tell(answer)

    def _end(self, client):
        self._clients.pop(client.descriptor, None)
        client.socket.close()


class _Client:
    """One conversation: a line is received, then an answer is sent."""

    def __init__(self, connected, until):
        self.socket, self.until = connected, until
        self.descriptor = connected.fileno()
        self.asked = False
        self.answer = b""
        self._line = b""

    def tell(self, answer):
        self.answer = memoryview(answer)
        self.until = time.monotonic() + TO_READ

    def receive(self):
        """True if it has ended."""
        some = self.socket.recv(protocol.LONGEST_REQUEST)
        if not some:
            return True
        self._line += some
        if self._line == protocol.REQUEST:
            self.asked = True
            # From here on it is this side that takes its time.
            self.until = float("inf")
        elif (len(self._line) >= len(protocol.REQUEST)
              or not protocol.REQUEST.startswith(self._line)):
            self.tell(protocol.error(
                "this is no request of version 1; `stratalloc top` of the "
                "version that the process has knows them"))
        return False

    def send(self):
        """True if all has been sent."""
        sent = self.socket.send(self.answer, socket.MSG_NOSIGNAL)
        self.answer = self.answer[sent:]
        return not self.answer


def _listening(folder, path):
    """A socket that listens at `path`, which appears when it already does."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unready = os.path.join(folder, f".{os.getpid()}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unready)  # of a process of this number that was killed
        # Linux makes the file with this mode; a umask is the whole process's.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(unready)
        listener.listen(_WAITING)
        listener.setblocking(False)
        os.rename(unready, path)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path):
    """What a process of this number left; RuntimeError if it is served, as by
    one of another container that shares the folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.settimeout(TO_ASK)
        try:
            other.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise RuntimeError(f"{path} is served by another process of this number; "
                       "give this one an XDG_RUNTIME_DIR of its own")


def _identity(path):
    found = os.lstat(path)
    return found.st_dev, found.st_ino
