# SPDX-License-Identifier: Apache-2.0
"""The ledger and a recording of the same process agree on owners and
categories, at every peak and at the end."""

import pytest

from tests.system.e2e import ledger_run

# One of each folder of programs; with moves, lists, threads and captures.
_QUICK = ("mem_tracker adam", "--foreach default", "clip_norm",
          "evicted graph", "conservation 1 6", "fit_jobs adamw")


@pytest.mark.parametrize("chosen", [
    _QUICK, pytest.param(("",), marks=pytest.mark.long, id="all")])
def test_ledger_equals_recording_in_every_program(chosen, capsys):
    ledger_run.prepare()
    programs = [program for program in ledger_run.PROGRAMS
                if str(program).endswith(chosen)]
    found = list(ledger_run.rows(programs))
    with capsys.disabled():
        print("\n" + ledger_run.HEADING)
        for row in found:
            print(ledger_run.line(row))
    assert len(found) == len(programs) >= len(chosen)
    assert [row["differences"] for row in found if row["differences"]] == []
    # Blocks that outlived their frame were at a peak.
    held = {row["program"] for row in found if row["activations"]}
    assert held >= {"attribution", "mem_tracker adam", "fit_jobs adamw",
                    "list_frameworks --device cuda trainer"} & {
                        str(program) for program in programs}
    assert all(row["peaks"] and row["rows"] for row in found)
