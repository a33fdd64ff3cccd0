# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs for its 700 operators: values and gradients.

Goal: no operator gives other numbers on the simulated device than on the CPU,
and none passes without computing. Method: the first samples of every entry of
PyTorch's operator database run on both; values must be close (nearly all are
equal; kernels that depend on alignment may differ in the last bits), gradients
too, and no kernel may have been launched.
"""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="1GiB", mode="async", seed=11)

# pylint: disable=wrong-import-position
import pytest
import torch

from tests.simulator.cudasim.operator_bridge import operator_database as database

# The result is random, or unspecified memory: it must run, nothing more.
RANDOM = (
    "rand", "bernoulli", "normal", "multinomial", "dropout", "empty", "uniform",
    "exponential", "cauchy", "geometric", "rrelu", "fractional_max_pool",
    "scaled_dot_product_attention", "multi_head_attention_forward",
)  # fmt: skip
# Unique up to sign or order only.
NOT_UNIQUE = ("svd", "pca_lowrank", "eig", "lobpcg")

OPERATORS = database.entries()


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
    op = OPERATORS[name]
    compared = 0
    for inputs in database.samples_of(op):
        try:
            expected = database.run(op, inputs)
        except (RuntimeError, NotImplementedError):
            continue  # not a CPU sample
        if not database.is_strided(expected):
            continue
        results = database.run(op, database.to_cuda(inputs))
        assert len(results) == len(expected)
        if not any(part in name for part in RANDOM + NOT_UNIQUE):
            for pair in zip(expected, results):
                _check(*pair, tolerance=1e-3)
        compared += 1
        if compared == database.SAMPLES:
            break
    assert compared > 0
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
