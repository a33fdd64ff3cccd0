# SPDX-License-Identifier: Apache-2.0
"""Half and bfloat16 operators: float computation, one rounding of results."""

import os

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.nn import functional as F

from tests.simulator.cudasim.operator_bridge.half_precision_cases import CASES

HALVES = pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
LIMIT = 5  # half_precision_table.py


def _values(*sizes):
    return torch.linspace(-1, 1, torch.Size(sizes).numel()).sin().view(sizes)


A, B, C = _values(24, 40), _values(40, 16).cos(), _values(24, 16)
IMAGE, FILTER = _values(2, 4, 9, 9), _values(6, 4, 3, 3)

# Each computes one widened operator.
WIDENED = {
    "mm": (torch.mm, A, B),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), C, A, B),
    "addmm_": (lambda c, a, b: c.clone().addmm_(a, b), C, A, B),
    "addmm_bias": (torch.addmm, C[0], A, B),
    "bmm": (torch.bmm, A.view(2, 12, 40), B.expand(2, 40, 16)),
    "baddbmm": (torch.baddbmm, C.view(2, 12, 16), A.view(2, 12, 40), B.expand(2, 40, 16)),
    "mv": (torch.mv, A, B[:, 0]),
    "dot": (torch.dot, A.view(-1), A.cos().view(-1)),
    "linear": (F.linear, A, B.t(), C[0]),
    "conv2d": (F.conv2d, IMAGE, FILTER),
    "conv_transpose2d": (F.conv_transpose2d, IMAGE, FILTER.transpose(0, 1)),
    "norm": (torch.linalg.vector_norm, A),
    "erfinv": (torch.erfinv, A * 0.9),
    "logit": (torch.logit, A.abs() * 0.8 + 0.1),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), IMAGE[:, None]),
}  # fmt: skip


def _rounded_once(function, operands, dtype):
    """On the CPU in float, of the same half-precision operands."""
    return function(*(t.to(dtype).float() for t in operands)).to(dtype)


def _assert_rounded(result, expected):
    """Equal but for the last bit, where sums end next to a tie."""
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert expected.isfinite().all()
    torch.testing.assert_close(
        result.detach().cpu().float(),
        expected.detach().float(),
        rtol=torch.finfo(expected.dtype).eps,
        atol=1e-6,
    )


@HALVES
@pytest.mark.parametrize("name", WIDENED)
def test_half_operator_equals_float_rounded_once(name, dtype):
    function, *operands = WIDENED[name]
    on_device = [t.to(dtype).to("cuda") for t in operands]
    before = DEVICE.widened()
    result = function(*on_device)
    assert DEVICE.widened() == before + 1
    _assert_rounded(result, _rounded_once(function, operands, dtype))


@pytest.mark.parametrize("name", WIDENED)
def test_float_operator_is_not_widened(name):
    function, *operands = WIDENED[name]
    before = DEVICE.widened()
    function(*(t.to("cuda") for t in operands))
    assert DEVICE.widened() == before


@HALVES
def test_half_backward_of_products_equals_float_rounded_once(dtype):
    leaves = [t.to(dtype).to("cuda").requires_grad_() for t in (IMAGE, FILTER)]
    before = DEVICE.widened()
    result = F.conv2d(*leaves)
    gradients = torch.autograd.grad(result, leaves, torch.ones_like(result))
    assert DEVICE.widened() == before + 2
    wide = [t.to(dtype).float().requires_grad_() for t in (IMAGE, FILTER)]
    expected = F.conv2d(*wide)
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, wide, torch.ones_like(expected))
    ):
        _assert_rounded(ours, theirs.to(dtype))


@HALVES
def test_half_recurrent_network_equals_float_rounded_once(dtype):
    network = torch.nn.LSTM(8, 8, 2).to("cuda", dtype)
    wide = torch.nn.LSTM(8, 8, 2)
    wide.load_state_dict({k: v.float() for k, v in network.state_dict().items()})
    x = _values(5, 3, 8).to(dtype)
    output, (hidden, cell) = network(x.to("cuda"))
    expected, (hidden_, cell_) = wide(x.float())
    for ours, theirs in ((output, expected), (hidden, hidden_), (cell, cell_)):
        _assert_rounded(ours, theirs.to(dtype))


@HALVES
def test_half_output_argument_is_resized_and_returned(dtype):
    out = torch.empty(0, dtype=dtype, device="cuda")
    a, b = (t.to(dtype).to("cuda") for t in (A, B))
    assert torch.mm(a, b, out=out) is out
    _assert_rounded(out, _rounded_once(torch.mm, (A, B), dtype))


@HALVES
def test_half_norm_with_dtype_float_is_not_rounded(dtype):
    x = A.to(dtype)
    before = DEVICE.widened()
    result = torch.linalg.vector_norm(x.to("cuda"), dtype=torch.float32)
    assert DEVICE.widened() == before + 1
    assert torch.equal(result.cpu(), torch.linalg.vector_norm(x.float()))


@HALVES
def test_mixed_types_are_refused_as_on_the_cpu(dtype):
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(A.to(dtype).to("cuda"), B.to("cuda"))


@HALVES
def test_half_distances_of_other_orders_are_refused(dtype):
    x = A.to(dtype).to("cuda")
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.cdist(x, x, p=1)


@HALVES
def test_half_nextafter_equals_the_cpu(dtype):
    information = torch.finfo(dtype)
    values = torch.tensor(
        [0.0, -0.0, 1, -1, 1.5, information.smallest_normal, information.max]
        + [information.min, float("inf"), float("-inf"), float("nan")],
        dtype=dtype,
    )
    first, second = torch.meshgrid(values, values, indexing="ij")
    result = torch.nextafter(first.to("cuda"), second.to("cuda")).cpu()
    expected = torch.nextafter(first, second)
    numbers = ~expected.isnan()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(
        result[numbers].view(torch.int16), expected[numbers].view(torch.int16)
    )


def test_table_has_every_case_and_no_factor_above_limit():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "HALF_PRECISION.md"), encoding="utf-8") as file:
        rows = [
            [cell.strip() for cell in line.strip("|\n").split("|")]
            for line in file
            if line.startswith("| ")
        ][1:]
    names = [name for name, *_ in rows if not name.endswith(", backward")]
    assert names == list(CASES)
    factors = [float(factor) for row in rows for factor in row[2:]]
    assert max(factors) <= LIMIT
