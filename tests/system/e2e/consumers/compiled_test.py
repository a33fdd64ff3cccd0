# SPDX-License-Identifier: Apache-2.0
"""torch.compile with CUDA graphs behind it, unpatched.

Triton links against libcuda.so.1 and has to be told where that is. What it
generates is compiled, assembled and loaded, and stops at the launch: a kernel
of no library has no twin on the host (cudaErrorNotSupported), under PyTorch's
allocator and ours. So Inductor is told to keep PyTorch's operators. Its numbers are those of eager and of the CPU.

Cumulative counts and peaks are not compared: to restore a checkpoint native
hands out every block of a segment, the free rest too, and frees that again, so
they depend on its segments; and only the first of the three compiles.
"""

import math
import os

import pytest

from stratalloc import simulate

from tests.system.e2e.consumers import asking


def _compiled(tmp_path, ways, *names, **more):
    return asking.same_everywhere(
        ways, *(f"compiled.{name}" for name in names), cumulative=False,
        TRITON_LIBCUDA_PATH=simulate.directory(),
        TORCHINDUCTOR_CACHE_DIR=os.fspath(tmp_path / "inductor"),
        TRITON_CACHE_DIR=os.fspath(tmp_path / "triton"), **more)


def _trained(seen, steps):
    losses = seen["compiled"][0]
    assert len(losses) == steps and all(map(math.isfinite, losses))
    assert seen["compiled"] == seen["eager"] == seen["cpu"]


def _cudagraphs(seen):
    _trained(seen, 8)
    assert seen["forward"] == [seen["forward on the cpu"]] * 3


def test_cudagraphs(tmp_path):
    saw = _compiled(tmp_path, (asking.WAYS[0], asking.WAYS[2]), "cudagraphs")
    _cudagraphs(saw["cudagraphs"])


@pytest.mark.long
def test_compiled(tmp_path):
    saw = _compiled(tmp_path, asking.WAYS, "cudagraphs", "reduce_overhead",
                    "branches", "generated_kernels", without_twin=1)
    _cudagraphs(saw["cudagraphs"])
    _trained(saw["reduce_overhead"], 6)
    assert saw["reduce_overhead"]["graphs"] == [True, 0]
    assert len(saw["branches"]["compiled"]) == 8
    assert saw["branches"]["compiled"] == saw["branches"]["cpu"]
    assert "operation not supported" in saw["generated_kernels"]
