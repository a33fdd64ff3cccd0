# SPDX-License-Identifier: Apache-2.0
"""500 programs: native and ours may not be told apart."""

from tests.differential import program, run


def test_no_difference():
    found = run.run(range(1, 501))
    assert not found, "\n".join(run.describe(each) for each in found)


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
