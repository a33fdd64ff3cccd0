# SPDX-License-Identifier: Apache-2.0
"""A damaged spill file raises in the calling program, naming the layer."""

import pytest

from tests.system.e2e import running


@pytest.mark.parametrize("door", ["module", "thread", "backward"])
def test_flipped_byte(door):
    # 48 MiB evicted, 4 MiB of host memory: each layer lies mostly on disk.
    done = running.on_device(
        "96MiB", running.program("corruption.py"), door,
        conf="host_budget:4MiB,disk_budget:64MiB")
    text = running.must_work(done)
    first, again = text.strip().splitlines()[:2]
    for line in (first, again):
        assert "second" in line, text
        assert "disk" in line, text
