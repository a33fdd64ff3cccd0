# SPDX-License-Identifier: Apache-2.0
"""Graph trees (mode="reduce-overhead") while another thread evicts everything.

A compiled graph is run, captured and then replayed, forward and backward. What
operators compute in it is compared with the CPU's numbers, what they draw with
the eager device's; Triton's kernels compute nothing here, and what they read
has to be there.
"""

from tests.simulator.cudasim.operator_bridge import compiling

DEVICE = compiling.load_ours("256MiB")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch import nn
from torch._inductor import config, cudagraph_trees

from python_shim.testing.evicting import evicting
import stratalloc
from stratalloc._tiering import tiers as _tiers

SEEDS = 5
STEPS = 12  # the first runs, the second captures
WIDTH = 512


@pytest.fixture(autouse=True)
def clean():
    yield
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0


class Model(nn.Module):
    """Two products, random numbers, and a parameter that only Triton reads.

    The products are of whole numbers so small that sums are exact in any order.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.randint(-2, 3, (WIDTH, WIDTH)).float())
            for _ in range(2)
        )
        # More than an eighth of the device, which its address would keep there.
        self.scale = nn.Parameter(torch.ones(9 << 20))

    def forward(self, x):
        product = x @ self.first @ self.second
        return product, (self.scale + 1).exp(), torch.rand_like(x)


def stream_of_the_trees():
    """Where they capture. There torch fills the graph's seed and offset first,
    and orders no replay on another stream behind that."""
    container = cudagraph_trees.get_container(torch.cuda.current_device())
    return torch.cuda.stream(container.get_tree_manager().stream)


def step(model, x, train):
    """The product and the random numbers, and what training leaves behind."""
    torch.manual_seed(7)
    product, scaled, drawn = model(x)
    if train:
        (product.sum() + scaled.sum()).backward()
    return product.detach().cpu(), drawn.cpu()


def replayed(compiled, x, train):
    torch.compiler.cudagraph_mark_step_begin()
    torch.cuda.synchronize()
    with stream_of_the_trees():
        results = step(compiled, x, train)
        torch.cuda.synchronize()
    return results


def negate(model):
    """Writes the weights between two replays, which read them where they are."""
    with torch.no_grad():
        for weight in (model.first, model.second):
            weight.neg_()
    model.zero_grad()


# Each seed compiles anew. A backward has a forward before it.
@pytest.mark.parametrize(
    "train, seeds",
    [
        pytest.param(True, range(1), id="one_backward"),
        pytest.param(False, range(SEEDS), id="forward", marks=pytest.mark.long),
        pytest.param(True, range(SEEDS), id="backward", marks=pytest.mark.long),
    ],
)
def test_replays_find_everything(train, seeds):
    beside = nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    with (
        evicting(),
        torch.set_grad_enabled(train),
        # The eager device's numbers, not Triton's.
        config.patch(fallback_random=True),
    ):
        for seed in seeds:
            DEVICE.cuda.cudasim_set_seed(seed)
            torch._dynamo.reset()  # the trees too: each seed has captures
            torch.manual_seed(seed)
            on_cpu, ours = Model(), Model().cuda()
            ours.load_state_dict(on_cpu.state_dict())
            compiled = torch.compile(ours, mode="reduce-overhead")
            for n in range(STEPS):
                x = torch.randint(-2, 3, (4, WIDTH)).float()
                on_device = x.cuda()
                torch.manual_seed(7)
                random = torch.rand_like(on_device).cpu()
                expected, _ = step(on_cpu, x, train)
                product, drawn = replayed(compiled, on_device, train)
                assert torch.equal(product, expected)
                assert torch.equal(drawn, random)
                if train:
                    for mine, right in (
                        (ours.first, on_cpu.first),
                        (ours.second, on_cpu.second),
                    ):
                        assert torch.equal(mine.grad.cpu(), right.grad)
                negate(ours)
                negate(on_cpu)
                with torch.no_grad():
                    beside.add_(1)  # comes back, to leave again
                if n == 1:
                    launched = DEVICE.launches_checked()
            # Nothing was launched any more but by replays.
            assert DEVICE.launches_checked() == launched
            # A replay asks nobody: what was captured stays.
            stratalloc.evict()
            stays = _tiers.residency(ours)
            assert stays["device"] > 0 and stays["host"] == 0
