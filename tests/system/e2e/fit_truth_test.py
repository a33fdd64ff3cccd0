# SPDX-License-Identifier: Apache-2.0
"""What `stratalloc fit` says of other cards is what is there."""

import pytest

from stratalloc.telemetry.analysis import fit
from tests.system.e2e import fit_truth_run

JOBS = ("convolutions", "adamw", "adam_one_by_one", "amp", "checkpointing",
        "lora", "accumulation", "inference", "generation", "evaluation",
        "two_streams", "experts")
# What each change runs: a lone stream, and two that run behind each other.
QUICK = ("adamw", "two_streams")


def _long_unless_in(chosen, names):
    return [name if name in chosen
            else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    assert tuple(fit_truth_run.prepare()) == JOBS


@pytest.mark.parametrize("name", _long_unless_in(QUICK, JOBS))
def test_verdict_and_peaks_are_those_of_the_program(name, tmp_path):
    rows = fit_truth_run.rows(name, 0, str(tmp_path))
    for row in rows:
        print(fit_truth_run.line(row))
    assert [row for row in rows if not row["same"]] == []
    assert len(rows) == 1 + len(fit_truth_run.CARDS)
    # Both verdicts were there to be told apart.
    assert {row["real"]["fits"] for row in rows} == {True, False}


@pytest.mark.parametrize("name, share", [
    pytest.param("adamw", .7, marks=pytest.mark.long), ("inference", .6),
    ("two_streams", .5)])
def test_what_leaves_is_about_what_is_said(name, share, tmp_path):
    row, = fit_truth_run.tiered(name, 0, str(tmp_path), [share])
    print(fit_truth_run.line(row))
    assert row["same"] and row["real"]["evicted"] > 0
    assert row["real"]["fits"] == (name != "two_streams")


@pytest.mark.parametrize("name", _long_unless_in(
    ("adamw",), ("adamw", "amp", "accumulation")))
def test_a_recording_of_a_small_card_tells_of_a_large_one(name, tmp_path):
    row = fit_truth_run.from_a_small_card(name, 0, str(tmp_path))
    print(fit_truth_run.line(row))
    assert row["same"] and row["evicted"] > 0


@pytest.mark.parametrize("factor, near", [
    pytest.param(1.19, True, marks=pytest.mark.long), (1.5, False)])
def test_slowdown_row_holds_fit_against_seconds(factor, near, tmp_path,
                                                monkeypatch):
    on_the_device, seconds = fit_truth_run.zygote.run, []

    def run(*arguments):
        # A generic card takes no time: of the small one `factor` of what fit
        # says, which is known by then.
        found = on_the_device(*arguments)
        seconds.append(.01 if not seconds else .01 * factor * slower[-1])
        return found | {"seconds": seconds[-1]}

    slower, of = [], fit.fit

    def said(*arguments, **how):
        found = of(*arguments, **how)
        if found.moves:
            slower.append(1 + found.moves.seconds[1] / .01)
        return found

    monkeypatch.setattr(fit_truth_run.zygote, "run", run)
    monkeypatch.setattr(fit, "fit", said)
    row = fit_truth_run.slowed("adamw", 0, str(tmp_path), .7)
    assert row["peak"][0] == row["peak"][1] and row["fits"] == (True, True)
    assert row["slower"][:2] == (1., slower[0]) and slower[0] > 1
    assert row["same"] == near and row["evicted"][1] > 0
    assert fit_truth_run.slow_line(row).startswith("   " if near else "RED")


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
