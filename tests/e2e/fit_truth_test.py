# SPDX-License-Identifier: Apache-2.0
"""What `stratalloc fit` says of other cards is what is there."""

import pytest

from tests.e2e import fit_truth_run

JOBS = ("convolutions", "adamw", "adam_one_by_one", "amp", "checkpointing",
        "lora", "accumulation", "inference", "generation", "evaluation",
        "two_streams", "experts")


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    assert tuple(fit_truth_run.prepare()) == JOBS


@pytest.mark.parametrize("name", JOBS)
def test_verdict_and_peaks_are_those_of_the_program(name, tmp_path):
    rows = fit_truth_run.rows(name, 0, str(tmp_path))
    for row in rows:
        print(fit_truth_run.line(row))
    assert [row for row in rows if not row["same"]] == []
    assert len(rows) == 1 + len(fit_truth_run.CARDS)
    # Both verdicts were there to be told apart.
    assert {row["real"]["fits"] for row in rows} == {True, False}


@pytest.mark.parametrize("name, share", [
    ("adamw", .7), ("inference", .6), ("two_streams", .5)])
def test_what_leaves_is_about_what_is_said(name, share, tmp_path):
    row, = fit_truth_run.tiered(name, 0, str(tmp_path), [share])
    print(fit_truth_run.line(row))
    assert row["same"] and row["real"]["evicted"] > 0
    assert row["real"]["fits"] == (name != "two_streams")


@pytest.mark.parametrize("name", ["adamw", "amp", "accumulation"])
def test_a_recording_of_a_small_card_tells_of_a_large_one(name, tmp_path):
    row = fit_truth_run.from_a_small_card(name, 0, str(tmp_path))
    print(fit_truth_run.line(row))
    assert row["same"] and row["evicted"] > 0


@pytest.mark.parametrize("arguments", [
    ["--seeds", "3"], ["--seeds", "4-3"], ["--jobs", "nothing"]])
def test_what_cannot_be_run(arguments):
    with pytest.raises(SystemExit) as ended:
        fit_truth_run.main(arguments)
    assert ended.value.code == 2


def test_a_difference_is_red(monkeypatch, capsys):
    one = {"fits": True, "reserved": 4 << 20, "allocated": 512}
    row = {"job": "adamw", "seed": 0, "capacity": 8 << 20, "said": one,
           "real": one | {"reserved": 6 << 20}, "same": False}
    monkeypatch.setattr(fit_truth_run, "prepare", lambda card: ["adamw"])
    monkeypatch.setattr(fit_truth_run, "rows", lambda *_: [row])
    assert fit_truth_run.main(["--jobs", "adamw"]) == 1
    told = capsys.readouterr().out
    assert "RED adamw" in told and "1 of 1 differ" in told
