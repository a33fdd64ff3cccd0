# SPDX-License-Identifier: Apache-2.0
"""Random programs, some behind and starved: native and ours may not be told
apart."""

import pytest

from tests.system.differential import program, run


# Requests that one of the two serves alone are explained, those that both refuse
# are equal: were these not counted, ours might refuse more and more.
_REFUSED = 0  # by ours alone: no more


def _none(result, capsys):
    with capsys.disabled():  # in the log of a run that passes, too
        print(f"\n{run.summary(result)}")
    found = result["differences"]
    assert not found, "\n".join(run.describe(each) for each in found)


def _count(result, kind):
    return result["classes"].get(kind, {"counts": 0})["counts"]


@pytest.mark.parametrize("last", [
    40, pytest.param(500, marks=pytest.mark.long)])
def test_no_difference(capsys, last):
    result = run.run(range(1, last + 1))
    _none(result, capsys)
    assert _count(result, "served") == _count(result, "refused") == 0


# Steps with blocks that wait for events and steps that both refuse, so that it
# was behind and short; served: by ours alone, no fewer.
@pytest.mark.parametrize("last,pending,refused,served", [
    (20, 20, 20, 30),
    pytest.param(100, 100, 100, 150, marks=pytest.mark.long)])
def test_no_difference_on_a_device_that_runs_behind_and_is_short(
        capsys, last, pending, refused, served):
    result = run.run(range(1, last + 1), mode="async", starved=True)
    _none(result, capsys)
    assert result["pending"] > pending
    assert result["refused"] > refused
    assert _count(result, "refused") <= _REFUSED
    assert _count(result, "served") >= served


def test_a_seed_is_a_program():
    assert program.make(7) == program.make(7)
    assert program.make(7) != program.make(8)


def test_every_step_is_made():
    made = {step[0] for seed in range(1, 501) for step in program.make(seed)}
    wanted = {
        line.split()[0].rstrip(",")
        for line in program.__doc__.split("Steps\n")[1].splitlines()
        if line.startswith("  ") and line[2] != " "
    }
    assert wanted | {"reset_accumulated"} == made
