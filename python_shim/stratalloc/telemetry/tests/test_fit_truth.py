# SPDX-License-Identifier: Apache-2.0
"""fit() against what the allocator did: recorded programs of tests/system/replay and
the peaks that were measured when they ran on it (tests/repository/figures/replay.json)."""

import json
import pathlib
import sys

import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).absolute().parents[4]
sys.path.insert(0, str(_ROOT))

from stratalloc.telemetry import model  # noqa: E402
from stratalloc.telemetry.analysis.fit import fit  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402
from tests.system.replay import trace  # noqa: E402

_FIGURES = json.loads((_ROOT / "tests/repository/figures/replay.json").read_text())
_CARD = 143156 << 20  # on which they were measured
_NAMES = sorted(_FIGURES["traces"])


def _run(name):
    """What a trace does, each block at an address of its own."""
    operations = trace.read(
        str(_ROOT / f"tests/system/replay/traces/{name}.trace")).operations
    kinds = operations["kind"]
    sizes = operations["size"][kinds == trace.MALLOC]
    rows = []
    for kind, stream, block in zip(
            kinds.tolist(), operations["stream"].tolist(),
            operations["block"].tolist()):
        address, size = (block + 1) << 36, int(sizes[block])
        for what in {trace.MALLOC: [Kind.ALLOC],
                     trace.FREE: [Kind.FREE_REQUESTED, Kind.FREE_COMPLETED],
                     }.get(kind, []):
            rows.append((len(rows), address, size, 0, 0, 0, stream, 0, what, 0,
                         0, 0))
    return model.Run(events=np.array(rows, model.EVENT),
                     devices=[model.Device(0)],
                     pools=[model.Pool(0, i) for i in range(256)])


@pytest.mark.parametrize("name", _NAMES)
def test_the_peak_is_what_was_measured(name):
    measured = _FIGURES["traces"][name]["stratalloc"]["reserved"]
    run = _run(name)
    found = fit(run, _CARD)
    assert found.fits and found.peak_reserved == measured
    assert not fit(run, int(measured * .97)).fits


def test_more_than_ten_programs_are_compared():
    assert len(_NAMES) >= 10
