# SPDX-License-Identifier: Apache-2.0
"""Random numbers: repeatable from the CUDA seed, independent of the CPU's."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB")

# pylint: disable=wrong-import-position
import pytest
import torch

DRAWS = {
    "randn": lambda g: torch.randn(1000, device="cuda", generator=g),
    "rand": lambda g: torch.rand(1000, device="cuda", generator=g),
    "randint": lambda g: torch.randint(99, (1000,), device="cuda", generator=g),
    "randperm": lambda g: torch.randperm(1000, device="cuda", generator=g),
    "normal": lambda g: torch.normal(
        torch.zeros(1000, device="cuda"), 1.0, generator=g
    ),
    "bernoulli": lambda g: torch.bernoulli(
        torch.full((1000,), 0.5, device="cuda"), generator=g
    ),
    "multinomial": lambda g: torch.multinomial(
        torch.ones(50, device="cuda"), 1000, replacement=True, generator=g
    ),
    "exponential": lambda g: torch.empty(1000, device="cuda").exponential_(
        generator=g
    ),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_seed_repeats_and_calls_differ(draw):
    torch.manual_seed(5)
    first, second = DRAWS[draw](None), DRAWS[draw](None)
    torch.manual_seed(5)
    again = DRAWS[draw](None)
    assert first.is_cuda
    assert torch.equal(first, again)
    assert not torch.equal(first, second)

    one = torch.Generator("cuda").manual_seed(7)
    two = torch.Generator("cuda").manual_seed(7)
    assert torch.equal(DRAWS[draw](one), DRAWS[draw](two))


def test_state_can_be_saved():
    state = torch.cuda.get_rng_state()
    a = torch.randn(10, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(a, torch.randn(10, device="cuda"))


def test_dropout_uses_the_cuda_seed_and_leaves_the_cpu_alone():
    x = torch.ones(10000, device="cuda", requires_grad=True)
    cpu_state = torch.get_rng_state()
    torch.cuda.manual_seed(3)
    a = torch.dropout(x, 0.25, True)
    torch.cuda.manual_seed(3)
    b = torch.dropout(x, 0.25, True)
    assert torch.equal(a, b)
    assert torch.equal(cpu_state, torch.get_rng_state())
    kept = (a != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.03
    assert a.max().item() == pytest.approx(4 / 3)
    a.sum().backward()
    assert torch.equal(x.grad, a.detach())
    assert torch.equal(torch.dropout(x, 0.5, False), x)
    assert torch.dropout(x, 1.0, True).abs().sum().item() == 0


def test_moments():
    torch.manual_seed(0)
    x = torch.randn(100000, device="cuda")
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02


def test_a_cpu_generator_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type"):
        torch.randn(3, device="cuda", generator=torch.Generator())
