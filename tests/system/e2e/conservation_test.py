# SPDX-License-Identifier: Apache-2.0
"""Whatever programs do, every sum of a report is another's, and torch's."""

import pytest

from tests.system.e2e import conservation_run


@pytest.mark.parametrize(
    "first", [1, pytest.param(1001, marks=pytest.mark.long)])
def test_seeded_programs(first):
    found = conservation_run.look(first, first + 19)
    assert not found["wrong"]
    assert found["programs"] == 20 and found["looks"] > 60
    assert len(found["steps"]) == 20  # each kind of step was taken
    # What the sums must survive has happened, and not by chance.
    for what in ("layers", "programs with 3 threads", "programs with evictions",
                 "checkpoints, reentrant", "checkpoints, not reentrant",
                 "checkpoints, nested", "raised in forward",
                 "raised in backward", "raised in a scope", "out of memory",
                 "backwards on another thread", "threads ended in a scope",
                 "answers to another thread"):
        assert found["happened"].get(what), (what, found["happened"])


def _found(first, last):
    """Of a program that begins after seed 6: one sum is wrong."""
    return {"programs": last - first + 1, "looks": 3,
            "wrong": [[7, 0, "live: 1 is not 2"]] if first > 6 else []}


def test_many_are_red_when_one_is(monkeypatch, capsys):
    monkeypatch.setattr(conservation_run, "look", _found)
    monkeypatch.setattr(conservation_run, "TOGETHER", 3)
    assert conservation_run.main(["--seeds", "1-5"]) == 0
    assert "5 programs, 6 looks, 0 wrong" in capsys.readouterr().out
    assert conservation_run.main(["--seeds", "1-7"]) == 1
    assert "seed 7, step 0: live: 1 is not 2" in capsys.readouterr().out


def _died(first, last):
    raise AssertionError("exit code -11")


def test_many_are_red_when_a_process_dies(monkeypatch, capsys):
    monkeypatch.setattr(conservation_run, "look", _died)
    assert conservation_run.main(["--seeds", "1-5"]) == 1
    assert "seeds 1 to 5: exit code -11" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["", "5", "5-4", "-5", "a-b"])
def test_seeds_that_cannot_be(seeds):
    with pytest.raises(SystemExit) as ended:
        conservation_run.main([f"--seeds={seeds}"])
    assert ended.value.code == 2
