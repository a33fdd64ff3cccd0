# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs for its 700 operators: values and gradients.

Goal: no operator gives other numbers on the simulated device than on the CPU,
and none passes without computing. Method: the first samples of every entry of
PyTorch's operator database run on both; values must be close (nearly all are
equal; kernels that depend on alignment may differ in the last bits), gradients
too, and no kernel may have been launched.
"""

from tests.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="1GiB", mode="async", seed=11)

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

# The result is random, or unspecified memory: it must run, nothing more.
RANDOM = (
    "rand", "bernoulli", "normal", "multinomial", "dropout", "empty", "uniform",
    "exponential", "cauchy", "geometric", "rrelu", "fractional_max_pool",
    "scaled_dot_product_attention", "multi_head_attention_forward",
)  # fmt: skip
# Unique up to sign or order only.
NOT_UNIQUE = ("svd", "pca_lowrank", "eig", "lobpcg")
NOT_ON_CUDA = {
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "tensor_split": "takes its indices on the CPU only",
    "as_strided.partial_views": "samples reach beyond the tensor's own bytes",
}


def _name(op):
    return ".".join(part for part in (op.name, op.variant_test_name) if part)


OPERATORS = {_name(op): op for op in op_db}


def _to_cuda(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda").requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return "cuda"
    return value


def _tensors(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _gradients(inputs, results):
    leaves = [t for t in _tensors(inputs) if t.requires_grad]
    roots = [t.sum() for t in results if t.requires_grad and not t.is_complex()]
    if not leaves or not roots:
        return []
    return torch.autograd.grad(roots, leaves, allow_unused=True)


def _check(expected, result, tolerance):
    assert (expected is None) == (result is None)
    if expected is None:
        return
    assert result.is_cuda
    assert (expected.shape, expected.dtype) == (result.shape, result.dtype)
    pair = [expected.detach(), result.detach().cpu()]
    if not expected.is_complex() and expected.dtype.itemsize < 4:
        pair = [t.float() for t in pair]
    torch.testing.assert_close(
        pair[1],
        pair[0],
        atol=tolerance,
        rtol=tolerance,
        equal_nan=True,
        check_stride=False,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPERATORS)
def test_equals_the_cpu(name):
    if name in NOT_ON_CUDA:
        return
    op = OPERATORS[name]
    dtype = torch.float32
    if not op.supports_dtype(dtype, "cpu"):
        dtypes = op.supported_dtypes("cpu")
        if not dtypes:
            return  # only CUDA computes it: test_refusals.py
        dtype = next(iter(dtypes))
    differentiable = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    compared = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        inputs = (sample.input, sample.args, sample.kwargs)
        try:
            expected = _tensors(op(inputs[0], *inputs[1], **inputs[2]))
            if any(t.layout != torch.strided for t in expected):
                continue
            expected += _gradients(inputs, expected)
        except (RuntimeError, NotImplementedError):
            continue  # not a CPU sample
        inputs = tree_map(_to_cuda, inputs)
        results = _tensors(op(inputs[0], *inputs[1], **inputs[2]))
        results += _gradients(inputs, results)
        assert len(results) == len(expected)
        if not any(part in name for part in RANDOM + NOT_UNIQUE):
            for pair in zip(expected, results):
                _check(*pair, tolerance=1e-3)
        compared += 1
        if compared == SAMPLES:
            break
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
