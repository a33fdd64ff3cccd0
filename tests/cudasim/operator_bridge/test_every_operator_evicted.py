# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator database while another thread evicts without pause.

Goal: whatever an operator reads, writes or returns is there when its kernel
runs, in forward and backward. Method: test_every_operator's comparison under our
allocator, everything that may leave leaving all the time. $CUDASIM_MODE is the
device's mode.
"""

import os
import threading

os.environ["SIMULATED_ALLOCATOR"] = "stratalloc"
os.environ["SIMULATED_CONF"] = "host_budget:1GiB,disk_budget:0"
MODE = os.environ.get("CUDASIM_MODE", "async")

from tests.cudasim.operator_bridge import simulated  # noqa: E402

_load = simulated.load
simulated.load = lambda **settings: _load(**{**settings, "mode": MODE})

# pylint: disable=wrong-import-position
import pytest

from tests.cudasim.operator_bridge.test_every_operator import (  # noqa: F401
    test_equals_the_cpu,
)

# After the device is loaded.
import stratalloc


@pytest.fixture(scope="module", autouse=True)
def evicting():
    """A thread that evicts everything, over and over."""
    stop, count = threading.Event(), [0, 0]

    def run():
        while not stop.is_set():
            count[0] += 1
            count[1] += stratalloc.evict()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()
    print(f"\n{MODE}: {count[0]} evictions of {count[1] / 2**30:.2f} GiB")
    assert count[1] > 2**30
