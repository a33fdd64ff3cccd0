# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample inputs for its 700 operators, without numbers.

Goal: with numbers off results and gradients have the sizes, strides and types
they have with numbers. Method: the first samples of every entry of PyTorch's
operator database, all zeros because every number reads as zero then, run on the
CPU and on the device.
"""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(
    memory="64GiB", mode="async", seed=11, CUDASIM_NUMBERS="off"
)

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.utils._pytree import tree_map

from tests.simulator.cudasim.operator_bridge import operator_database as database

WITHOUT = {
    "as_strided": "samples reach beyond the tensor's own bytes",
    "istft": "raises for a window of zeros",
    "combinations": "chooses by a mask of its own, which is not of zeros",
    # Pivots of zero lead LAPACK out of its arrays on the CPU.
    "linalg.ldl_solve": "pivots",
    "linalg.lu_solve": "pivots",
    "lu_solve": "pivots",
    "lu_unpack": "pivots",
    "multinomial": "raises for probabilities of zero",
    "linalg.tensorinv": "raises: zeros have no inverse",
    "linalg.tensorsolve": "raises: zeros have no inverse",
}
# What is saved for a backward that does not come is empty on the CPU.
SAVES_MORE = ("native_batch_norm", "_native_batch_norm_legit")
# Strides are the device's own choice (cuFFT's, cuSOLVER's).
OTHER_STRIDES = (
    "svd_lowrank", "pca_lowrank", "fft.rfftn", "fft.irfftn", "linalg.eig",
)  # fmt: skip

OPERATORS = database.entries(without=WITHOUT)


def _zeroed(value):
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        with torch.no_grad():
            value.zero_()
    return value


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
@pytest.mark.parametrize("name", database.each(4, OPERATORS))
def test_looks_like_the_cpus(name):
    op = OPERATORS[name]
    compared = 0
    for inputs in database.samples_of(op):
        try:
            inputs = tree_map(_zeroed, inputs)
            expected = database.run(op, inputs)
        except (RuntimeError, NotImplementedError):
            continue  # not a CPU sample, or not for zeros
        if not database.is_strided(expected):
            continue
        results = database.run(op, database.to_cuda(inputs))
        assert len(results) == len(expected)
        for pair in zip(expected, results):
            _check(name, *pair)
        compared += 1
        if compared == database.SAMPLES:
            break
    assert compared > 0


def test_nothing_was_launched_or_misused():
    torch.cuda.synchronize()
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
    assert DEVICE.violations() == []
