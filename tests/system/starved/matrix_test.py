# SPDX-License-Identifier: Apache-2.0
"""A part of the starved matrix; with the long cases each model and each job.

The whole of it is `python -m tests.system.starved.matrix`.
"""

import json

import pytest

from tests.system.e2e import running

CELLS = (
    "gpt2:adamw:1.5", "llama:checkpointing:1.5", "t5:momentum:1.5",
    "bert:single:2", "tied:accumulation:2", "biasfree:inference:1.5",
)
LONG = (
    "vit:inference:2", "experts:inference:1.5", "llama:fused:2",
    "t5:lora:2", "tied:scaler:1.5", "bert:trainer:1.5",
    "gpt2:accelerate:2", "biasfree:lightning:2", "vit:autocast:1.5",
    "experts:clip:2",
)


@pytest.fixture(scope="module", name="rows")
def _rows(request, tmp_path_factory):
    """Of the cells that pytest was asked for, by name."""
    cells = [item.callspec.params["name"] for item in request.session.items
             if "rows" in item.fixturenames]
    file = tmp_path_factory.mktemp("matrix") / "rows.json"
    done = running.python("-m", "tests.system.starved.matrix", "--cells",
                          ",".join(cells), "--json", file)
    assert file.exists(), f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    with open(file, encoding="utf-8") as text:
        rows = json.load(text)["cells"]
    return {f"{row['model']}:{row['job']}:{row['ratio']:g}": row
            for row in rows}


@pytest.mark.parametrize("name", CELLS + tuple(
    pytest.param(name, marks=pytest.mark.long) for name in LONG))
def test_cell(rows, name):
    """Ended, with the numbers of the CPU or of the same device unstarved."""
    row = rows[name]
    assert row["error"] is None, f"{row['error']}\n{row.get('trace')}"
    assert row["need"] >= row["ratio"] * row["card"]
    assert row["moved"]["in"] > 0
    assert 0 in (row["difference"], row["unstarved_difference"])
