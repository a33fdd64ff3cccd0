# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs for its 700 operators, without numbers.

Goal: with numbers off results and gradients have the sizes, strides and types
they have with numbers. Method: the first samples of every entry of PyTorch's
operator database, all zeros because every number reads as zero then, run on the
CPU and on the device.
"""

from tests.cudasim.operator_bridge import simulated

DEVICE = simulated.load(
    memory="64GiB", mode="async", seed=11, CUDASIM_NUMBERS="off"
)

# pylint: disable=wrong-import-position
import sys
import types
import unittest

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

# PyTorch's test utilities import it for assertions that are not used here.
sys.modules.setdefault(
    "expecttest", types.ModuleType("expecttest")
).TestCase = unittest.TestCase
from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 2

SKIPPED = {
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "tensor_split": "takes its indices on the CPU only",
    "as_strided": "samples reach beyond the tensor's own bytes",
    "as_strided.partial_views": "samples reach beyond the tensor's own bytes",
    "istft": "raises for a window of zeros",
    "combinations": "chooses by a mask of its own, which is not of zeros",
    # Pivots of zero lead LAPACK out of its arrays on the CPU.
    "linalg.ldl_solve": "pivots",
    "linalg.lu_solve": "pivots",
    "lu_solve": "pivots",
    "lu_unpack": "pivots",
}
# What is saved for a backward that does not come is empty on the CPU.
SAVES_MORE = ("native_batch_norm", "_native_batch_norm_legit")
# Strides are the device's own choice (cuFFT's, cuSOLVER's).
OTHER_STRIDES = (
    "svd_lowrank", "pca_lowrank", "fft.rfftn", "fft.irfftn", "linalg.eig",
)  # fmt: skip


def _name(op):
    return ".".join(part for part in (op.name, op.variant_test_name) if part)


OPERATORS = {_name(op): op for op in op_db}


def _zeroed(value):
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        with torch.no_grad():
            value.zero_()
    return value


def _to_cuda(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda").requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return "cuda"
    return value


def _tensors(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _run(op, inputs):
    """Results and the gradients of their sum."""
    results = _tensors(op(inputs[0], *inputs[1], **inputs[2]))
    leaves = [t for t in _tensors(inputs) if t.requires_grad]
    roots = [t.sum() for t in results if t.requires_grad and not t.is_complex()]
    if leaves and roots:
        results += torch.autograd.grad(roots, leaves, allow_unused=True)
    return results


def _check(name, expected, result):
    assert (expected is None) == (result is None)
    if expected is None:
        return
    assert result.is_cuda
    assert expected.dtype == result.dtype
    if name not in SAVES_MORE:
        assert expected.shape == result.shape
        if expected.numel() > 1 and name not in OTHER_STRIDES:
            assert expected.stride() == result.stride()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_looks_like_the_cpus(name):
    if name in SKIPPED:
        return
    op = OPERATORS[name]
    dtype = torch.float32
    if not op.supports_dtype(dtype, "cpu"):
        dtypes = op.supported_dtypes("cpu")
        if not dtypes:
            return  # only CUDA computes it
        dtype = next(iter(dtypes))
    differentiable = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    compared = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        inputs = (sample.input, sample.args, sample.kwargs)
        try:
            inputs = tree_map(_zeroed, inputs)
            expected = _run(op, inputs)
        except (RuntimeError, NotImplementedError):
            continue  # not a CPU sample, or not for zeros
        if any(t is not None and t.layout != torch.strided for t in expected):
            continue
        results = _run(op, tree_map(_to_cuda, inputs))
        assert len(results) == len(expected)
        for pair in zip(expected, results):
            _check(name, *pair)
        compared += 1
        if compared == SAMPLES:
            break


def test_nothing_was_launched_or_misused():
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
    assert DEVICE.violations() == []
