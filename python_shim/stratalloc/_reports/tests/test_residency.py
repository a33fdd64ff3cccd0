# SPDX-License-Identifier: Apache-2.0
"""residency(), reset_peak() and report(), on a simulated device."""

import sys
import types

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc._hooks import resets  # noqa: E402

MIB = 1 << 20


def _model():
    """Two layers of 4 MiB each."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False)
                           for _ in range(2))).cuda()


def test_residency_follows_evict_and_restore():
    model = _model()
    assert stratalloc.residency(model) == {
        "device": 8 * MIB, "host": 0, "disk": 0}
    stratalloc.evict(model[0])
    found = stratalloc.residency(model)
    assert (found.device, found.host, found.disk) == (4 * MIB, 4 * MIB, 0)
    assert found == {"device": 4 * MIB, "host": 4 * MIB, "disk": 0}
    assert stratalloc.residency(model[0].weight).host == 4 * MIB
    stratalloc.restore(model)
    assert stratalloc.residency([model, model]).device == 8 * MIB


def test_residency_of_a_module_counts_its_gradients_on_their_tier():
    model = _model()
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    assert stratalloc.residency(model).device == 16 * MIB
    assert stratalloc.residency(model[0]).device == 8 * MIB
    stratalloc.evict(model[1])
    found = stratalloc.residency([model])
    assert (found.device, found.host) == (8 * MIB, 8 * MIB)
    assert stratalloc.residency(model.children()) == found  # read once
    assert stratalloc.residency(list(model.parameters())).host == 4 * MIB
    model.zero_grad()
    assert sum(stratalloc.residency(model).values()) == 8 * MIB


class _Unread(nn.Parameter):
    @property
    def grad(self):
        raise AssertionError("another thread may be replacing it")


def test_residency_of_a_module_reads_no_grad():
    layer = nn.Linear(1024, 1024, bias=False, device="cuda")
    layer.weight = _Unread(layer.weight.detach())
    layer(torch.ones(1, 1024, device="cuda")).sum().backward()
    assert stratalloc.residency(layer).device == 8 * MIB


def test_residency_of_cpu_memory_is_zero():
    assert stratalloc.residency(nn.Linear(4, 4)) == {
        "device": 0, "host": 0, "disk": 0}


def test_residency_of_no_tensor_raises():
    with pytest.raises(TypeError, match="residency"):
        stratalloc.residency("weights")


def test_report_as_a_table_has_every_key_of_a_layer(monkeypatch):
    kept = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    frames = []
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(
        DataFrame=lambda rows, columns: frames.append((rows, columns))))
    found = stratalloc.report()
    found.to_pandas()
    (rows, columns), = frames
    assert kept.numel() == MIB and rows
    assert all(set(row) == set(columns) for row in rows)
    assert str(found) == stratalloc.memory_summary()


def _scope_peak(name):
    row, = [row for row in stratalloc.report()["scopes"]
            if row["owner"] == name]
    return row["peak_owned"]


def test_reset_peak_begins_at_what_is_held():
    kept = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    with stratalloc.scope("peaked"):
        torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
    high = stratalloc.peak().total
    assert high >= 17 * MIB and _scope_peak("peaked") == 16 * MIB
    stratalloc.reset_peak()
    now = torch.cuda.memory_allocated()
    assert stratalloc.peak().total == now <= high - 16 * MIB
    assert stratalloc.stats()["allocated"] == {"current": now, "peak": now}
    assert _scope_peak("peaked") == 0
    assert torch.cuda.max_memory_allocated() == now and kept.numel() == MIB


def test_reset_peak_is_noted_as_a_reset_of_torch():
    noted = []
    hooks = resets.before_each(
        torch, lambda: noted.append(stratalloc.peak().total))
    try:
        stratalloc.reset_peak()
    finally:
        hooks.put_back()
    assert len(noted) == 1


@pytest.mark.parametrize("device, said", [
    (7, "no CUDA device 7; this process sees 1, numbered from 0"),
    ("cuda:7", "no CUDA device 7;"),
    ("x", "'x' names no device; write 0, \"cuda:0\" or a torch.device"),
    ("cpu", "cpu is not a CUDA device"),
    (1.5, "1.5 names no device;"),
])  # fmt: skip
def test_reset_peak_of_a_missing_device_raises(device, said):
    with pytest.raises(ValueError) as refusal:
        stratalloc.reset_peak(device)
    assert str(refusal.value).startswith("stratalloc: " + said), refusal.value
