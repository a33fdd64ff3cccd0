# SPDX-License-Identifier: Apache-2.0
"""The example of fine-tuning: on a card with room for two thirds of what it
has it learns what it learns on a large one, bit for bit."""

import json
import os
import pathlib
import re

import pytest

from bazel import programs

_EXAMPLE = pathlib.Path("python_shim/examples/finetuning").absolute()
_README = (_EXAMPLE / "README.md").read_text()
_SMALL, = re.findall(r"^stratalloc run --simulate (\d+)MiB finetune.py$",
                     _README, re.MULTILINE)
_CARD = int(_SMALL) << 20


def _run(card, folder):
    """(its JSON, stdout, stderr) on a card of this size."""
    out = folder / f"{card}.json"
    done = programs.run(
        "-m", "stratalloc", "run", "--simulate", card, "finetune.py", "--steps",
        "2", "--json", out, cwd=_EXAMPLE, timeout=600,
        # Sums of several threads are in another order.
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text()), done.stdout, done.stderr


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuning")
    return _run("1GiB", folder), _run(f"{_SMALL}MiB", folder)


def test_both_learn_the_same(runs):
    (large, *_), (small, *_) = runs
    for epoch, other in zip(large["epochs"], small["epochs"], strict=True):
        assert epoch["losses"] == other["losses"]
        assert epoch["accuracy"] == other["accuracy"]
    first, last = large["epochs"]
    assert len(first["losses"]) == 2
    assert last["losses"][-1] < first["losses"][0]


def test_the_small_card_has_no_room_for_all_of_it(runs):
    (large, *_), (small, _, errors) = runs
    held = small["epochs"][0]["trained"]
    parameters = sum(held["parameter"].values())
    state = sum(held["optimizer_state"].values())
    gradients = state // 2  # each has two moments
    assert parameters + gradients + state > _CARD
    assert 0 < small["peak"] <= _CARD < large["peak"]
    # What does not fit has left, in each epoch, and come back.
    beyond = parameters + gradients + state - _CARD
    assert small["bytes_evicted"] > 2 * beyond
    assert small["bytes_restored"] > beyond
    # On the large one nothing left but by hand: after two epochs, at the end.
    by_hand = [epoch["evicted_by_hand"] for epoch in large["epochs"]]
    assert 0 <= large["bytes_evicted"] - sum(by_hand) <= by_hand[0]
    assert "0 launches without a twin, 0 refused calls, 0 violations" in errors


def test_the_state_leaves_by_hand(runs):
    for found, out, _ in runs:
        for epoch in found["epochs"]:
            state = epoch["evicted"]["optimizer_state"]
            assert epoch["evicted_by_hand"] > 0
            assert sum(state.values()) == sum(
                epoch["trained"]["optimizer_state"].values())
            assert state.get("device", 0) == 0
            assert epoch["evicted"]["parameter"]["device"] > 0
        assert re.search(r"^  optimizer_state +8\d", out, re.MULTILINE), out
