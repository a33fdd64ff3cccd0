# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator database while another thread evicts without pause.

Goal: whatever an operator reads, writes or returns is there when its kernel
runs, in forward and backward. Method: test_every_operator's comparison under our
allocator, everything that may leave leaving all the time. $CUDASIM_MODE is the
device's mode.
"""

import os

os.environ["SIMULATED_ALLOCATOR"] = "stratalloc"
os.environ["SIMULATED_CONF"] = "host_budget:1GiB,disk_budget:0"
MODE = os.environ.get("CUDASIM_MODE", "async")

from tests.simulator.cudasim.operator_bridge import simulated  # noqa: E402

_load = simulated.load
simulated.load = lambda **settings: _load(**{**settings, "mode": MODE})

# pylint: disable=wrong-import-position
import pytest

from python_shim.testing.evicting import evicting
from tests.simulator.cudasim.operator_bridge import test_every_operator as plain
from tests.simulator.cudasim.operator_bridge import operator_database as database


@pytest.fixture(scope="module", autouse=True)
def everything_leaves(request):
    with evicting() as evictions:
        yield
    print(
        f"\n{MODE}: {evictions.count} evictions of "
        f"{evictions.bytes / 2**30:.2f} GiB"
    )
    # A GiB while all of them run.
    part = len(request.session.items) / len(plain.OPERATORS)
    assert evictions.bytes > part * 2**30


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", database.each(8, plain.OPERATORS))
def test_equals_the_cpu_while_everything_leaves(name):
    plain.test_equals_the_cpu(name)
