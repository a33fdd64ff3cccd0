# SPDX-License-Identifier: Apache-2.0
"""Tensors in several processes while another thread evicts in each: what is
shared stays, in the process whose memory it is, and is nobody's to evict in the
other."""

from tests.simulator.cudasim.operator_bridge import simulated

simulated.load(
    SHARING_ALLOCATORS="stratalloc,stratalloc",
    SHARING_EVICTS="1",
    memory="64MiB",
    mode="async",
    children=True,
    SHARING_METHODS="spawn",
    SIMULATED_ALLOCATOR="stratalloc",
    STRATALLOC_CONF="host_budget:128MiB,disk_budget:0",
)

# pylint: disable=wrong-import-position,wildcard-import,unused-wildcard-import
import stratalloc
from stratalloc._tiering import tiers as _tiers
from tests.simulator.cudasim.operator_bridge.sharing_cases import *
from tests.simulator.cudasim.operator_bridge.sharing_cases import _end, _start


@pytest.fixture(autouse=True)
def here_too(nothing_is_left):
    with workers.everything_leaves():
        yield


def test_what_was_away_is_used_by_both(context):
    """The rest of the device is taken while the other process has it."""
    ours, theirs = context.Pipe()
    child = _start(context, workers.add, theirs)
    others = [
        torch.nn.Parameter(torch.zeros(2 << 20, device="cuda"))
        for _ in range(6)
    ]
    total = torch.zeros(1 << 20)
    for seed in range(10):
        simulated.current().cuda.cudasim_set_seed(seed)
        values = torch.arange(1 << 20).float() + seed
        tensor = values.cuda()
        torch.cuda.synchronize()
        stratalloc.evict([tensor])
        assert _tiers.residency(tensor)["device"] == 0
        with torch.cuda.stream(torch.cuda.Stream()):
            ours.send(tensor)
        assert ours.recv() == "has it"
        with torch.no_grad():
            for other in others:
                other.add_(1)
        torch.cuda.synchronize()
        ours.send("use it")
        total += values
        assert torch.equal(torch.from_numpy(ours.recv()), total)
        assert torch.equal(tensor.cpu(), values + 1)
        del tensor
    for other in others:
        assert torch.all(other.cpu() == 10)
    ours.send(None)
    _end(child, ours.recv())
    ours.close()
