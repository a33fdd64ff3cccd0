# SPDX-License-Identifier: Apache-2.0
"""x = 2 x + 1, in Triton; a file of its own, for Triton reads its source."""

import triton
from triton import language as tl

_BLOCK = 1024


@triton.jit
def _twice_and_one(x, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    tl.store(x + at, tl.load(x + at, inside) * 2 + 1, inside)


def twice_and_one(tensor):
    count = tensor.numel()
    _twice_and_one[(triton.cdiv(count, _BLOCK),)](tensor, count, block=_BLOCK)
