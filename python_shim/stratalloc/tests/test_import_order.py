# SPDX-License-Identifier: Apache-2.0
"""Libraries imported between the simulated device and enable().

Their operators are guarded at their own keys, and the bridge of the simulated
device must come below that.
"""

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch.distributed import fsdp  # noqa: E402
from torchvision import ops  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402


@pytest.fixture(autouse=True)
def clean():
    yield
    torch.cuda.synchronize()
    assert simulate.violations() == []


def _evicted(values):
    tensor = torch.nn.Parameter(values.cuda(), requires_grad=False)
    assert stratalloc.evict(tensor) > 0
    return tensor


def test_operators_in_python():
    assert fsdp.fully_shard
    values = torch.arange(1 << 19, dtype=torch.float32)
    weight = _evicted(values)
    gathered = torch.empty(2 << 19, device="cuda")
    torch.ops.fsdp.all_gather_copy_in(
        [weight], gathered, [weight.numel()], weight.numel(), 1)
    assert torch.equal(gathered[1 << 19:].cpu(), values)


def test_compiled_operators():
    boxes = torch.rand(1000, 4)
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(1000)
    right = ops.nms(boxes, scores, 0.5)
    assert torch.equal(ops.nms(_evicted(boxes), _evicted(scores), 0.5).cpu(),
                       right)
