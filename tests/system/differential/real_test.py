# SPDX-License-Identifier: Apache-2.0
"""Programs run as on a GPU (real.py). The GPU of the workers is a simulated
one all the same, which they find as a program finds its card: nothing of its
control functions is used."""

import os

import pytest

from bazel import programs
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


# Each step that reads, on a device where nothing is done before it is asked for.
_UNORDERED = """
from stratalloc import simulate
simulate.load("64MiB", mode="async")
import torch
from tests.system.differential import compare, real, tensors
streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in "123")]
made = tensors.Tensors(streams, real.Real(), "native", compare.EAGER)
made.own.stream = 0
made.alloc(0, 1000, 1)
made.alloc(1, 1000, 2)
shown = [made.write(0, 7), made.record(0, 2), made.record(0, 0),
         made.copy(1, 0), made.resize(1, 2000), made.record(1, 3)]
print(shown, made.close(), simulate.violations())
"""


def test_what_a_step_shows_is_ordered_behind_all_that_made_it():
    done = programs.run("-c", _UNORDERED)
    filled = 2001 % 251
    shown = [7000, 8000, 9000, 9000, 9000, (filled + 1) * 2000]
    assert done.stdout.strip() == (
        f"{shown} {({0: 9000, 1: (filled + 1) * 2000})} []"), done.stderr


def test_programs_see_the_same_under_both():
    assert real.wanted()
    seeds = [*range(1, 5), 17]
    assert {program.devices_of(program.make(seed)) for seed in seeds} == {1, 2}
    assert run.run(seeds)["differences"] == []
