# SPDX-License-Identifier: Apache-2.0
"""What a recording says of host and disk is what the ledger says, of random
programs with more weights than the card and the host have room for."""

import random

import pytest

from stratalloc import simulate

simulate.load("32MiB")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc.telemetry import identities, model  # noqa: E402
from stratalloc.telemetry.checks import snapshot as check  # noqa: E402
from stratalloc.telemetry.exports import metrics, snapshot, tiers  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def enabled(tmp_path_factory):
    assert stratalloc.enable(
        host_budget="24MiB", disk_budget="256MiB",
        disk_dir=str(tmp_path_factory.mktemp("disk")))
    torch.cuda.init()


def _program(chance):
    """Weights of whole handles come, go and are used; those that are left."""
    layers = []
    for _ in range(100):
        kind = chance.random()
        if kind < .5 and len(layers) < 20:
            layers.append(nn.Linear(1024, chance.choice([512, 1024, 2048]),
                                    bias=False).cuda())
        elif kind < .7 and layers:
            del layers[chance.randrange(len(layers))]
        elif layers:
            with torch.no_grad():
                for layer in chance.sample(layers, min(3, len(layers))):
                    layer(torch.ones(1, 1024, device="cuda"))
    torch.cuda.synchronize()
    return layers


def _ledger():
    """Bytes by tier, between two marks."""
    stratalloc.mark("before")
    rows = stratalloc.holders().rows
    stratalloc.mark("after")
    return {tier: sum(row.bytes for row in rows if row.tier == tier)
            for tier in ("host", "disk")}


@pytest.mark.parametrize("seed", [
    0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_tiers_are_the_ledgers(seed, tmp_path):
    with stratalloc.trace() as trace:
        before = torch.cuda.memory_stats()["allocation.all.freed"]
        layers = _program(random.Random(seed))
        freed = torch.cuda.memory_stats()["allocation.all.freed"] - before
        read = [_ledger() for _ in range(5)]
    run = trace.run()
    assert identities.check(run) == []
    moved = set(run.events["category"][
        run.events["kind"] == model.Kind.MOVE].tolist())
    assert moved >= {model.move(0, 1), model.move(1, 2), model.move(2, 0)}
    # Memory moves in the background, too: a reading is that of a moment between
    # its marks, unless it met a restore, whose move is told when it has begun.
    below = tiers.Tiers(run, 0)
    marks = np.flatnonzero(run.events["kind"] == model.Kind.MARK).tolist()
    assert any(ledger in [below.at(i) for i in range(first, last + 1)]
               for ledger, first, last in zip(read, marks[::2], marks[1::2]))
    assert min(read[0].values()) > 0
    frees = next(one for one in metrics.families(run) if one.name == "frees")
    assert [value for _, value in frees.samples] == [freed]
    path = tmp_path / "snapshot.pickle"
    snapshot.write(run, path)
    assert check.check(path) == []
    del layers
