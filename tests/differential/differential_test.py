# SPDX-License-Identifier: Apache-2.0
"""500 programs, and some behind and starved: native and ours may not be told
apart."""

from tests.differential import program, run


# Requests that one of the two serves alone are explained, those that both refuse
# are equal: were these not counted, ours might refuse more and more.
_SERVED = 150  # by ours alone, of the starved seeds below: no fewer
_REFUSED = 0  # by ours alone: no more


def _none(result, capsys):
    with capsys.disabled():  # in the log of a run that passes, too
        print(f"\n{run.summary(result)}")
    found = result["differences"]
    assert not found, "\n".join(run.describe(each) for each in found)


def _count(result, kind):
    return result["classes"].get(kind, {"counts": 0})["counts"]


def test_no_difference(capsys):
    result = run.run(range(1, 501))
    _none(result, capsys)
    assert _count(result, "served") == _count(result, "refused") == 0


def test_no_difference_on_a_device_that_runs_behind_and_is_short(capsys):
    result = run.run(range(1, 101), mode="async", starved=True)
    _none(result, capsys)
    # It was both: work outstanding, and memory refused.
    assert result["pending"] > 100
    assert result["refused"] > 100
    assert _count(result, "refused") <= _REFUSED
    assert _count(result, "served") >= _SERVED


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
