# SPDX-License-Identifier: Apache-2.0
"""The threads of a manager: one looks every so often, one fetches.

Both are daemons named "stratalloc-…". They hold their owner weakly and end when
it is gone or when stop() tells them. What a call raises is a line of the
logger, once for each text; the thread goes on.

Thread-safety: any thread. stop() waits for what the thread does, unless it is
called from that thread. Fails: never.
"""

import logging
import queue
import threading
import weakref

_log = logging.getLogger("stratalloc")


class Ticker:
    """Calls a bound method again and again; it returns the seconds between."""

    def __init__(self, method, seconds):
        self._told = threading.Event()
        self._thread = _begun("stratalloc-memory-monitor", _tick,
                              weakref.WeakMethod(method), self._told, seconds)

    @property
    def is_alive(self):
        return self._thread.is_alive()

    def stop(self):
        self._told.set()
        _join(self._thread)


class Fetcher:
    """Calls a bound method with what it is given, one after the other."""

    def __init__(self, method):
        self._given = queue.SimpleQueue()
        self._thread = _begun("stratalloc-memory-prefetch", _fetch,
                              weakref.WeakMethod(method), self._given)

    def give(self, reference):
        """A weak reference, to what may be gone by then."""
        self._given.put(reference)

    @property
    def is_alive(self):
        return self._thread.is_alive()

    def stop(self):
        self._given.put(None)
        _join(self._thread)


def _begun(name, function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name=name,
                              daemon=True)
    thread.start()
    return thread


def _join(thread):
    if thread is not threading.current_thread():
        thread.join()


def _tick(reference, told, seconds):
    said = set()
    while not told.wait(seconds):
        method = reference()
        if method is None:
            return
        seconds = _try(said, method) or seconds
        del method  # a thread that waits keeps nobody


def _fetch(reference, given):
    said = set()
    while (wanted := given.get()) is not None:
        method, one = reference(), wanted()
        if method is None:
            return
        if one is not None:
            _try(said, method, one)
        del method, one


def _try(said, method, *arguments):
    try:
        return method(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        text = f"{type(error).__name__}: {error}"
        if text not in said:
            said.add(text)
            _log.warning("stratalloc: memory_management: %s", text)
        return None
