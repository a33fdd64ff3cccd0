# SPDX-License-Identifier: Apache-2.0
"""The three allocators that a test of whole processes compares.

Tests that run programs one by one use workers.py, which keeps a process of
each alive.
"""

import os

from bazel import programs

KINDS = ("native", "expandable", "ours")


def run(kind, module, *arguments):
    """`python -m module arguments` under this kind of allocator."""
    environment = dict(os.environ)
    environment.pop("STRATALLOC", None)
    environment.update(
        SIMULATED_ALLOCATOR="stratalloc" if kind == "ours" else "native",
        STRATALLOC_CONF="tiering:off",
        PYTORCH_CUDA_ALLOC_CONF=(
            "expandable_segments:True" if kind == "expandable" else ""
        ),
    )
    done = programs.run("-m", module, *map(str, arguments), env=environment,
                        merged=True)
    assert done.returncode == 0, done.stdout
