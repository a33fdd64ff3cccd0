# SPDX-License-Identifier: Apache-2.0
"""Results of two runs of one job, compared bit for bit."""

import math

import torch


def sound(result):
    """Why a reference proves nothing, or None."""
    values = [torch.tensor(result["losses"]), *result["tensors"].values()]
    if not all(bool(value.isfinite().all()) for value in values):
        return "the job itself makes numbers that are not finite"
    return None


def difference(one, other):
    """The largest difference of any number; 0.0 means the same bits."""
    worst = 0.
    pairs = [(torch.tensor(one["losses"]), torch.tensor(other["losses"]))]
    assert one["tensors"].keys() == other["tensors"].keys()
    pairs += [(value, other["tensors"][name])
              for name, value in one["tensors"].items()]
    for left, right in pairs:
        if torch.equal(left, right):
            continue
        gap = (left.double() - right.double()).abs().max().item()
        worst = max(worst, math.inf if math.isnan(gap) else gap)
    return worst
