# SPDX-License-Identifier: Apache-2.0
"""What a test on the simulated device, with the real core, begins with.

    from python_shim.testing.enabled import enabled  # noqa: E402,F401

after simulate.load(): one process for the file, one allocator for the process.
The import is all; pytest finds the fixture by its name in the module.
"""

import pytest
import torch

import stratalloc


@pytest.fixture(scope="module", autouse=True)
def enabled():
    """Ours from the file's first test on, with a host that has room, no disk,
    and CUDA as a first use leaves it."""
    assert stratalloc.enable(host_budget="1GiB", disk_budget=0)
    torch.cuda.init()
