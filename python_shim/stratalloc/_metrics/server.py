# SPDX-License-Identifier: Apache-2.0
"""serve_metrics(), write_metrics() and metrics_collector(): a process's metrics
for Prometheus.

The server is http.py's: a daemon thread that listens, one more for
each connection up to a bound. A child of a fork has neither; it closes the
socket that it inherited, so that the port is its parent's alone.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from stratalloc._metrics import metrics as _metrics
from stratalloc._native.argument_types import Path
from stratalloc._native.started import Started

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from stratalloc._metrics.http import _Server

_serving = []  # MetricsServer that are open


class MetricsServer(Started):
    """Serves until close(), the end of its `with`, or that of the process.

    Attributes:
      addr: str, the address at which it listens.
      port: int.
      url: str, what Prometheus scrapes.
    """

    addr: str
    port: int
    url: str

    def __init__(self, server: _Server, thread: threading.Thread,
                 addr: str) -> None:
        self._server, self._thread = server, thread
        self.addr, self.port = addr, server.server_port
        host = f"[{addr}]" if ":" in addr else addr
        self.url = f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """The port is free after it. Again, or in a forked child, it does
        nothing."""
        server, self._server = self._server, None
        if self in _serving:
            _serving.remove(self)
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def _forget(self):
        """In a forked child: its copy of the socket, and no thread."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()

    def __repr__(self):
        state = self.url if self._server is not None else "closed"
        return f"<stratalloc.MetricsServer {state}>"


def serve_metrics(port: int = 0, addr: str = "127.0.0.1",
                  modules: int = _metrics.MODULES) -> MetricsServer:
    """Serves this process's metrics over HTTP, for Prometheus.

    Before CUDA is initialised, too, which no scrape does. Metrics tell the
    names of layers to whoever reaches the port: the default address is this
    machine's alone.

    Args:
      port: int; 0: one that is free, see the result's `port`.
      addr: str, the address to listen at; "0.0.0.0": all of this machine.
      modules: so many layers of each device are told by name, those that owned
        most at any time; the rest is one, "(other)".

    Returns: MetricsServer, which is a context manager. Keeping it is not
    needed: it serves until the process ends.

    Raises:
      ValueError: the port or `modules` is no number that can be.
      RuntimeError: nothing can listen there; what is in the way is said.
      MissingPackageError: prometheus_client is not installed.
    """
    from stratalloc._metrics import http as _metrics_http
    from stratalloc.telemetry.exports import exposition

    port = _whole("port", port, 65535)
    modules = _whole("modules", modules, 10_000)
    registry = exposition.registry(lambda: _metrics.families(modules))
    for one in _serving:
        if port and (one.addr, one.port) == (addr, port):
            raise RuntimeError(
                f"stratalloc.serve_metrics: this process serves {one.url} "
                "already: use what that call returned, close() it first, or "
                "give another port")
    try:
        server, thread = _metrics_http.started(
            port, addr, exposition.client().make_wsgi_app(registry))
    except OSError as error:
        raise RuntimeError(
            f"stratalloc.serve_metrics: nothing can listen at port {port} of "
            f"{addr}: {error.strerror or error}; give another port, or 0 for "
            "one that is free") from error
    _forget_in_forks()
    made = MetricsServer(server, thread, addr)
    _serving.append(made)
    return made


def write_metrics(path: Path, modules: int = _metrics.MODULES) -> None:
    """Writes this process's metrics as a file, whole or not at all, for
    node_exporter's textfile collector (which reads files that end in `.prom`).

    Everybody may read the file (mode 0644, whatever the umask): node_exporter
    runs as a user of its own. Metrics tell the names of layers; where these are
    nobody's business the directory's mode keeps others out.

    Args:
      path: str or path-like. A file that is there is replaced.
      modules: as serve_metrics() has it.

    Raises:
      ValueError: `modules` is no number that can be.
      RuntimeError: it cannot be written.
      MissingPackageError: prometheus_client is not installed.
    """
    from stratalloc.telemetry.exports import exposition
    from stratalloc.telemetry.exports.target import target

    modules = _whole("modules", modules, 10_000)
    made = exposition.written(lambda: _metrics.families(modules))
    try:
        with target(path, mode=0o644) as file:
            file.write(made)
    except OSError as error:
        raise RuntimeError(
            f"stratalloc.write_metrics: {os.fspath(path)} cannot be written: "
            f"{error.strerror}; choose a place that can be written and has "
            "room") from error


def metrics_collector(modules: int = _metrics.MODULES) -> Collector:
    """This process's metrics for a program that serves metrics of its own.

        prometheus_client.REGISTRY.register(stratalloc.metrics_collector())

    Metrics tell the names of layers to whoever may read what the program
    serves.

    Args:
      modules: as serve_metrics() has it.

    Returns: a collector, for one registry of prometheus_client or more.

    Raises:
      ValueError: `modules` is no number that can be.
      MissingPackageError: prometheus_client is not installed.
    """
    from stratalloc.telemetry.exports import exposition

    modules = _whole("modules", modules, 10_000)
    return exposition.collector(lambda: _metrics.families(modules))


def _whole(name, value, most):
    if isinstance(value, bool) or not isinstance(value, int) or not (
            0 <= value <= most):
        raise ValueError(f"stratalloc: {name}={value!r}: give a whole number "
                         f"from 0 to {most}")
    return value


_hooked = False


def _forget_in_forks():
    global _hooked
    if _hooked:
        return
    _hooked = True

    def forget():
        while _serving:
            _serving.pop()._forget()  # pylint: disable=protected-access

    os.register_at_fork(after_in_child=forget)
