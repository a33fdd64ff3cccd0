# SPDX-License-Identifier: Apache-2.0
"""Another thread that evicts everything that may leave, without pause.

    with evicting():
        ...     # whatever runs here has to bring back what it uses

What tests of every room say when they want the worst moment for everything.
stratalloc must be enabled.
"""

import contextlib
import threading
import time

import stratalloc


class Evictions:
    """What the thread did so far."""

    def __init__(self):
        self.count = 0
        self.bytes = 0
        # Held during each eviction: who takes it keeps the thread out of one.
        self.lock = threading.Lock()
        self.thread = None

    def await_first(self):
        """Until something has left. Fails if nothing does."""
        give_up = time.monotonic() + 60
        while self.bytes == 0:
            assert self.thread.is_alive() and time.monotonic() < give_up


@contextlib.contextmanager
def evicting():
    """Gives the Evictions. Fails if the thread did, or if nothing ever left:
    then the test would have tested nothing."""
    evictions, stop, errors = Evictions(), threading.Event(), []

    def run():
        try:
            while not stop.is_set():
                with evictions.lock:
                    evictions.bytes += stratalloc.evict()
                evictions.count += 1
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    evictions.thread = threading.Thread(target=run)
    evictions.thread.start()
    try:
        yield evictions
    finally:
        stop.set()
        evictions.thread.join()
    assert not errors, errors
    assert evictions.bytes > 0, f"{evictions.count} evictions moved nothing"
