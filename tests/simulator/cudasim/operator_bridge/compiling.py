# SPDX-License-Identifier: Apache-2.0
"""The simulated device as Triton and inductor need it.

load() takes simulated.load()'s settings and, like it, comes before torch.
"""

import os
import tempfile

from tests.simulator.cudasim.operator_bridge import simulated


def load(memory, **settings):
    """A card that they compile for, and nothing compiled before."""
    cache = tempfile.mkdtemp()
    os.environ["TRITON_CACHE_DIR"] = os.path.join(cache, "triton")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(cache, "inductor")
    # Inductor's workers are processes without a device.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    return simulated.load(memory=memory, CUDASIM_CARD="h200", **settings)


def load_ours(memory, **settings):
    """The same in async mode under the product's allocator, which evicts.

    Every raw launch has its pointers checked, and workspaces are small, since
    they never leave.
    """
    return load(
        memory,
        mode="async",
        SIMULATED_ALLOCATOR="stratalloc",
        SIMULATED_CONF="host_budget:1GiB,disk_budget:0",
        CUDASIM_CHECK_RAW_LAUNCHES="all",
        CUBLAS_WORKSPACE_CONFIG=":16:8",
        CUBLASLT_WORKSPACE_SIZE="128",
        **settings,
    )
