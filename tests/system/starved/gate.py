# SPDX-License-Identifier: Apache-2.0
"""Gates on streams, for the programs of gates.py, and the order of events.

Thread-safety: an Order and a Gate are shared by the threads of a program.
Lifetime: a Gate lives until its stream has passed it.
Errors: AssertionError where a stream does not come to its gate; a gate that
gives up notes that, with the frames of all threads.
Invariants: every wait has a deadline.
"""

import contextlib
import ctypes
import faulthandler
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.system.starved import place

MIB = 1 << 20
CARD = 64 * MIB
GIVE_UP_S = 20.  # of a gate
WATCHDOG_S = 60  # of a process
OPENED, GAVE_UP = "gate opened", "gate gave up"
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Order:
    """What happened, in order, and where threads stood when a gate gave up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[str] = []
        self.stood = ""

    def note(self, event: str) -> None:
        with self._lock:
            self.events.append(event)
            print(event, flush=True)  # the watchdog's report has it too

    def give_up(self, event: str) -> None:
        """Notes the event and the Python frames of all threads."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            self.stood = file.read()
        self.note(event)


class Gate:
    """A host function that keeps one stream until open().

    `name`: stands before the gate's events in the Order.
    """

    def __init__(self, order: Order, name: str = "") -> None:
        self._order, self._name = order, name
        self._open, self.entered = threading.Event(), threading.Event()
        self.passed = threading.Event()
        self._function = _HOST_FUNCTION(self._wait)  # kept while it may run

    def shut(self, stream: Any) -> None:
        """Enqueues it on a torch.cuda.Stream."""
        import torch

        with torch.cuda.device(stream.device):
            error = ctypes.CDLL("libcudart.so.13").cudaLaunchHostFunc(
                ctypes.c_void_p(stream.cuda_stream), self._function, None)
        assert error == 0, f"cudaLaunchHostFunc: {error}"

    def open(self) -> None:
        self._open.set()

    def await_entered(self, stream: Any) -> None:
        """Until the stream stands here: asks it, which moves it."""
        until = time.monotonic() + GIVE_UP_S
        while not self.entered.is_set():
            stream.query()
            assert time.monotonic() < until, "the stream did not come here"

    def _wait(self, _: Any) -> None:
        self.entered.set()
        if self._open.wait(GIVE_UP_S):
            self._order.note(self._name + OPENED)
        else:
            self._order.give_up(self._name + GAVE_UP)
        self.passed.set()


def devices(seed: int, **settings: Any) -> None:
    """Two cards, and the watchdog. A fork that comes later could have none.

    seed: of the order in which streams advance. settings: of enable().
    """
    from stratalloc import simulate

    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    place.device(CARD, **settings)
    simulate.driver().cudasim_set_seed(ctypes.c_uint64(seed))


def tensors(number: int, size: int, device: int = 0) -> list[Any]:
    """Zeros of `size` bytes each, whose making is over."""
    import torch

    with torch.cuda.device(device):
        made = [torch.zeros(size // 4, device=f"cuda:{device}")
                for _ in range(number)]
        torch.cuda.synchronize()
    return made


def add(each: list[Any], times: int = 1) -> None:
    """Adds one to each tensor, in so many passes, on the current stream."""
    for _ in range(times):
        for tensor in each:
            tensor.add_(1)


def wrong(each: list[Any], value: int) -> int:
    """How many tensors are not full of that value; waits for all devices."""
    import torch

    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    return sum(not bool((tensor == value).all()) for tensor in each)


def together(*works: Callable[[], None]) -> None:
    """Each work in a thread of its own; raises the first error."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), name=work.__name__)
               for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def on(stream: Any) -> Iterator[None]:
    import torch

    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
