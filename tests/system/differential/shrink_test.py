# SPDX-License-Identifier: Apache-2.0
"""The shrinker keeps what fails and drops the rest."""

from tests.system.differential import program
from tests.system.differential.shrink import shrink


def test_two_steps_are_left():
    steps = program.make(3) + [["alloc", 1, 77777, 2], ["empty_cache"]]

    def fails(candidate):
        names = [step[0] for step in candidate]
        return "empty_cache" in names and any(
            step[0] == "alloc" and step[2] > 600 for step in candidate
        )

    short = shrink(steps, fails)
    assert fails(short)
    assert len(short) == 2
    assert ["empty_cache"] in short


def test_nested_steps_are_dropped():
    inner = [["alloc", 1, 5, 0], ["free", 1], ["write", 1, 9]]
    short = shrink(
        [["pool", 0, 0, 0], ["in_pool", 0, inner]],
        lambda steps: any(["free", 1] in step for step in map(list, steps)
                          for step in step if isinstance(step, list)),
    )
    assert short == [["in_pool", 0, [["free", 1]]]]


def test_it_gives_up_in_the_end():
    calls = []

    def fails(candidate):
        calls.append(candidate)
        return False

    steps = program.make(5)
    assert shrink(steps, fails, tries=7) == steps
    assert len(calls) == 7
