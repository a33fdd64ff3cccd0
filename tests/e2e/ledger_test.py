# SPDX-License-Identifier: Apache-2.0
"""The ledger and a recording of the same process agree on owners and
categories, at every peak and at the end."""

from tests.e2e import ledger_run


def test_ledger_equals_recording_in_every_program(capsys):
    ledger_run.prepare()
    found = list(ledger_run.rows(ledger_run.PROGRAMS))
    with capsys.disabled():
        print("\n" + ledger_run.HEADING)
        for row in found:
            print(ledger_run.line(row))
    assert len(found) == len(ledger_run.PROGRAMS)
    assert [row["differences"] for row in found if row["differences"]] == []
    # Blocks that outlived their frame were at a peak.
    held = {row["program"] for row in found if row["activations"]}
    assert held >= {"attribution", "mem_tracker adam", "fit_jobs adamw",
                    "list_frameworks --device cuda trainer"}
    assert all(row["peaks"] and row["rows"] for row in found)
