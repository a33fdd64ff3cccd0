# SPDX-License-Identifier: Apache-2.0
"""Programs run as on a GPU (real.py). The GPU of the workers is a simulated
one all the same, which they find as a program finds its card: nothing of its
control functions is used."""

import os

import pytest

from tests.system.differential import program, real, run


@pytest.fixture(name="card", autouse=True)
def _card(monkeypatch):
    from stratalloc import simulate

    # With the time of a card, so that work takes a while.
    simulate.load("1GiB", devices=2, card="h200")
    before = dict(os.environ)
    simulate.for_children()
    monkeypatch.setenv("DIFFERENTIAL_DEVICE", "cuda")
    yield
    os.environ.clear()
    os.environ.update(before)


def test_programs_see_the_same_under_both():
    assert real.wanted()
    seeds = [*range(1, 5), 17]
    assert {program.devices_of(program.make(seed)) for seed in seeds} == {1, 2}
    assert run.run(seeds)["differences"] == []
