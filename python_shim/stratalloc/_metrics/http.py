# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of serve_metrics(): prometheus_client's application, and
bounds on what whoever reaches the port costs the program.

There are at most MOST connections, each with a thread. One that has sent no
whole request and is silent for IDLE seconds is closed, and before that where
its place is needed: who asks is answered, however many others are silent. Once
a connection has asked, it ends by its answer; newcomers wait for that in the
kernel's queue. What fails is logged: it is nobody's business on the program's
stderr.
"""

import contextlib
import io
import logging
import socket
import socketserver
import threading
from wsgiref import simple_server

IDLE = 10  # seconds that a connection may send, or take, nothing
MOST = 16  # connections, and threads that answer
_log = logging.getLogger("stratalloc")


def started(port, addr, application):
    """(server, its thread, which listens). OSError: it cannot listen there."""
    (family, _, _, _, found), *_ = socket.getaddrinfo(
        addr, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    server = simple_server.make_server(
        found[0], port, application,
        type("Server", (_Server,), {"address_family": family}), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return server, thread


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # beyond it TCP tries again after a second

    def __init__(self, *args, **kwargs):
        self._places = threading.Condition()
        self._open = {}  # connection -> whether it has asked; the oldest first
        super().__init__(*args, **kwargs)

    def get_request(self):
        with self._places:
            if len(self._open) >= MOST:
                silent = [one for one, asked in self._open.items() if not asked]
                for one in silent[:1]:
                    with contextlib.suppress(OSError):  # it has hung up
                        one.shutdown(socket.SHUT_RDWR)  # its thread ends by it
                self._places.wait_for(lambda: len(self._open) < MOST)
        connection, client = super().get_request()
        with self._places:
            self._open[connection] = False
        return connection, client

    def asked(self, connection):
        """It has sent a request: it ends by its answer."""
        with self._places:
            self._open[connection] = True

    def close_request(self, request):
        super().close_request(request)
        with self._places:
            self._open.pop(request, None)
            self._places.notify()

    def handle_error(self, request, client_address):
        _log.debug("a connection from %s failed", client_address, exc_info=True)


class _Handler(simple_server.WSGIRequestHandler):
    def setup(self):
        self.timeout = IDLE
        self._said = io.StringIO()
        super().setup()

    def parse_request(self):
        found = super().parse_request()
        if found:
            self.server.asked(self.connection)
        return found

    def get_stderr(self):
        return self._said  # wsgiref tells errors there

    def finish(self):
        if self._said.getvalue():
            _log.debug("an answer to %s failed:\n%s", self.client_address,
                       self._said.getvalue())
        super().finish()

    def log_message(self, format, *args):  # noqa: A002
        """Scrapes are not logged."""
