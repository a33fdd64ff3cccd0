# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator database, as the tests of all operators read it.

`entries()` is what a test runs over: operators that are left out are not in it,
so that none counts as passed without having run. Import it after
`simulated.load()`: the database imports torch.
"""

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
# pylint: disable=wrong-import-position
from torch.testing._internal.common_methods_invocations import op_db

# Samples of each operator that are compared.
SAMPLES = 2

# Left out everywhere, and why.
NOT_COMPARABLE = {
    "sparse.mm.reduce": "PyTorch has no CUDA kernel",
    "histogram": "PyTorch has no CUDA kernel",
    "histogramdd": "PyTorch has no CUDA kernel",
    "tensor_split": "takes its indices on the CPU only",
    "as_strided.partial_views": "samples reach beyond the tensor's own bytes",
    # test_sparse.py compares these.
    "sparse.sampled_addmm": "results are sparse",
    "to_sparse": "results are sparse",
    # Refused on the device, or by the CPU for every sample.
    "torch._scaled_mm_v2": "no sample runs on the CPU",
    "jiterator_unary": "compiles a kernel for CUDA",
    "jiterator_binary": "compiles a kernel for CUDA",
    "jiterator_4inputs_with_extra_args": "compiles a kernel for CUDA",
    "jiterator_binary_return_by_ref": "compiles a kernel for CUDA",
    "jiterator_2inputs_2outputs": "compiles a kernel for CUDA",
}

# The same, of a minor and each later one: PyTorch added the entry there.
NOT_COMPARABLE_SINCE = {
    (2, 14): {
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": (
            "PyTorch has no CUDA kernel"
        ),
    },
}


def _not_comparable():
    minor = tuple(int(part) for part in torch.__version__.split(".")[:2])
    since = [
        name
        for first, names in NOT_COMPARABLE_SINCE.items()
        if minor >= first
        for name in names
    ]
    return [*NOT_COMPARABLE, *since]


def name_of(op):
    return ".".join(part for part in (op.name, op.variant_test_name) if part)


def dtype_of(op):
    """float32, else the first type the CPU computes it in; None: not any."""
    if op.supports_dtype(torch.float32, "cpu"):
        return torch.float32
    return next(iter(op.supported_dtypes("cpu")), None)


def entries(without=()):
    """{name: entry} of what a test can compare with the CPU.

    `without`: names left out besides those above. KeyError for a name that the
    database does not hold: a list of exceptions must not outlive its reason.
    """
    operators = {name_of(op): op for op in op_db}
    for name in (*_not_comparable(), *without):
        del operators[name]
    # What only CUDA computes is tested in test_refusals.py.
    return {n: op for n, op in operators.items() if dtype_of(op) is not None}


def each(number, operators):
    """The names as parameters: each `number`-th now, the others with the mark
    `long`. Neighbours are alike: add, addbmm, addcdiv, ..."""
    return [
        name if i % number == 0 else pytest.param(name, marks=pytest.mark.long)
        for i, name in enumerate(operators)
    ]


def samples_of(op):
    """The operator's sample inputs on the CPU, as (input, args, kwargs)."""
    dtype = dtype_of(op)
    differentiable = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        yield sample.input, sample.args, sample.kwargs


def tensors(value):
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def to_cuda(inputs):
    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.detach().to("cuda").requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or value == "cpu":
            return "cuda"
        return value

    return tree_map(moved, inputs)


def run(op, inputs):
    """Results, and the gradients of their sum; None where nothing flows."""
    results = tensors(op(inputs[0], *inputs[1], **inputs[2]))
    leaves = [t for t in tensors(inputs) if t.requires_grad]
    roots = [t.sum() for t in results if t.requires_grad and not t.is_complex()]
    if leaves and roots:
        results += torch.autograd.grad(roots, leaves, allow_unused=True)
    return results


def is_strided(results):
    return all(t is None or t.layout == torch.strided for t in results)
