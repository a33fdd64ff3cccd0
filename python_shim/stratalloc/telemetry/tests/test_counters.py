# SPDX-License-Identifier: Apache-2.0
"""What every exporter says of a program is what the allocator counted in it."""

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import formats  # noqa: E402
import told  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc.telemetry.exports import scalars  # noqa: E402


@pytest.fixture(scope="module")
def recorded():
    """(a Run of a training, {what: bytes} by torch.cuda.memory_stats()). What is
    left at its end is less than its peak, and more than nothing."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    with stratalloc.trace() as trace:
        net = nn.Sequential(*[nn.Linear(300, 300) for _ in range(4)]).cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(3):
            stratalloc.mark(f"step {step}")
            net(torch.randn(64, 300, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        # A timeline has no events of segments: its end is that of a block.
        kept = torch.empty(700, dtype=torch.uint8, device="cuda")
        after = torch.cuda.memory_stats()
    counted = {}
    for name in told.SUMS:
        counted[name] = after[f"{name}_bytes.all.current"]
        counted[f"peak {name}"] = after[f"{name}_bytes.all.peak"]
        assert 0 < counted[name] < counted[f"peak {name}"]
    for what, key in (("bytes in all", "allocated_bytes.all.allocated"),
                      ("blocks in all", "allocation.all.allocated")):
        counted[what] = after[key] - before[key]
        assert counted[what] > 0
    del kept
    return trace.run(), counted


@pytest.mark.parametrize("name", sorted(formats.WRITERS))
def test_a_file_tells_what_the_allocator_counted(recorded, name, tmp_path):
    run, counted = recorded
    found = told.read(formats.export(run, name, tmp_path))
    exact = 1e-6 if name == "events.tfevents" else 0  # floats of 32 bits
    assert len(found) >= 2
    assert found == {what: pytest.approx(counted[what], rel=exact, abs=0)
                     for what in found}


def test_wandb_is_told_what_the_allocator_counted(recorded):
    run, counted = recorded
    steps = []
    scalars.log(run, lambda row, step: steps.append(row))
    found = told.scalars(steps)
    assert found == {what: counted[what] for what in found}
