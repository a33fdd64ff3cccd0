# SPDX-License-Identifier: Apache-2.0
"""memory_summary(): which rows it has.

On made-up reports, and once on a simulated device's.
"""

import subprocess
import sys

from stratalloc import _reports

_TOTALS = {
    "device": 0, "gpu_limit": 1 << 30, "live": 5 << 20, "stays": {},
    "allocated": {"current": 5 << 20, "peak": 400 << 20},
    "reserved": {"current": 6 << 20, "peak": 500 << 20},
    "config": {"tiering": True, "host_budget": 64 << 20, "disk_budget": 0},
    "tiers": {"bytes_evicted": 0, "bytes_restored": 0, "bytes_to_disk": 0,
              "bytes_from_disk": 0, "stalls": 0, "stall_ns": 0,
              "host_used": 3 << 20, "host_peak": 7 << 20,
              "host_reserved": 11 << 20, "host_reserved_peak": 13 << 20},
}


def _row(owner, live, at_peak, category="activation"):
    return {"owner": owner, "category": category, "live": live,
            "device": live, "host": 0, "disk": 0, "at_peak": at_peak}


def _summary(monkeypatch, *rows, **how):
    monkeypatch.setattr(_reports, "report",
                        lambda device: {**_TOTALS, "layers": list(rows)})
    return _reports.memory_summary(**how).splitlines()


def test_what_is_gone_is_shown_if_it_made_the_peak(monkeypatch):
    lines = _summary(
        monkeypatch, _row("here", 5 << 20, 5 << 20),
        _row("gone.large", 0, 300 << 20), _row("never", 0, 0))
    at = next(i for i, line in enumerate(lines) if line.startswith("total"))
    total, gone, here = lines[at:]
    assert total.split()[1:3] == ["5", "MiB"]
    assert "305 MiB" in total
    assert gone.split() == ["gone.large", "0", "B", "0", "B", "0", "B", "0",
                            "B", "300", "MiB", "activation", "300", "MiB"]
    assert here.split()[0] == "here"


def test_as_many_rows_as_the_terminal_has(monkeypatch):
    monkeypatch.setenv("LINES", "26")
    rows = [_row(f"layer{i:02}", 1 << i, 0) for i in range(20)]
    lines = _summary(monkeypatch, *rows)
    at = next(i for i, line in enumerate(lines) if line.startswith("total"))
    shown = [line.split()[0] for line in lines[at + 1:-1]]
    assert shown == [f"layer{i:02}" for i in range(19, 11, -1)]
    assert lines[-1] == ("and 12 smaller, 4.00 KiB; all=True or depth=N has "
                         "them")
    assert len(lines) == 26 - 3, "and the prompt"
    assert len(_summary(monkeypatch, *rows, all=True)) == at + 21
    assert len(_summary(monkeypatch, *rows, depth=0)) == at + 1


def test_host_memory_is_what_was_used_and_what_is_pinned(monkeypatch):
    lines = _summary(monkeypatch)
    (used,) = [line for line in lines if line.startswith("host memory used")]
    (pinned,) = [line for line in lines if line.startswith("  pinned for it")]
    assert used.split()[3:] == ["3", "MiB", "7", "MiB", "64", "MiB"]
    assert pinned.split()[3:] == ["11", "MiB", "13", "MiB", "64", "MiB"]


def test_on_a_device():
    done = subprocess.run([sys.executable, "-c", """
from stratalloc import simulate
simulate.load("64MiB")
import torch, stratalloc
stratalloc.enable(host_budget="32MiB", disk_budget=0)
net = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
with stratalloc.scope("gone"):
    torch.ones(2 << 20, device="cuda")
assert stratalloc.evict(net) == 4 << 20 == stratalloc.restore(net)
assert stratalloc.evict(net) == 4 << 20
tiers = stratalloc.report()["tiers"]
assert tiers["host_used"] == tiers["host_peak"] == 4 << 20, tiers
assert 4 << 20 <= tiers["host_reserved"] <= 32 << 20, tiers
assert tiers["host_reserved_peak"] == tiers["host_reserved"]
stratalloc.restore()
tiers = stratalloc.report()["tiers"]
assert tiers["host_peak"] == 4 << 20, tiers
summary = stratalloc.memory_summary()
(gone,) = [line for line in summary.splitlines() if "gone" in line]
assert gone.split()[:3] == ["gone", "0", "B"], gone
assert "8 MiB" in gone, gone
"""], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
