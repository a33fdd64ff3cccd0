# SPDX-License-Identifier: Apache-2.0
"""Saving, loading and copying a starved model keeps nothing on the device."""

import json

import pytest

from tests.system.e2e import running
from tests.system.starved import saving


def _rows(tmp_path, model, *arguments):
    file = tmp_path / "rows.json"
    done = running.python("-m", "tests.system.starved.saving", "--models", model,
                          "--json", file, *arguments)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(file.read_text())["rows"]


@pytest.mark.parametrize("model", [
    pytest.param(model, marks=() if model == "tied" else pytest.mark.long)
    for model in saving.MODELS])
def test_nothing_stays_and_nothing_is_wrong(tmp_path, model):
    rows = _rows(tmp_path, model)
    assert len(rows) >= 5
    assert [row for row in rows if row["red"]] == []


def test_compared_addresses_of_untied_weights_restore_nothing(tmp_path):
    compared, saved = _rows(tmp_path, "llama", "--operations",
                            "compare_addresses", "save_pretrained")
    assert compared["red"] == saved["red"] == ""
    assert compared["in"] == compared["out"] == compared["handed_out"] == 0


def test_a_row_knows_what_is_red():
    row = {"operation": "torch_save", "same": True, "faults": [], "pinned": [],
           "handed_out": 0, "capacity": 64 << 20, "in": 1, "tied": 0}
    assert saving.red(row) == ""
    for change in ({"same": False}, {"faults": ["1 violations"]},
                   {"pinned": [{"bytes": 1}]}, {"handed_out": 9 << 20},
                   {"in": 0}, {"error": "x"},
                   {"operation": "compare_addresses", "in": 1}):
        assert saving.red({**row, **change}), change
