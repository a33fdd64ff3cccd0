# SPDX-License-Identifier: Apache-2.0
"""memory_summary(): which rows it has, and what of a name is shown.

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


def _row(owner, live, peak, category="activation"):
    return {"owner": owner, "category": category, "live": live, "peak": peak,
            "device": live, "host": 0, "disk": 0}


def _summary(monkeypatch, *rows):
    monkeypatch.setattr(_reports, "report",
                        lambda device: {**_TOTALS, "layers": list(rows)})
    return _reports.memory_summary().splitlines()


def test_what_is_gone_is_shown_if_its_peak_mattered(monkeypatch):
    lines = _summary(
        monkeypatch, _row("gone.small", 0, 1 << 20), _row("here", 5 << 20,
                                                          5 << 20),
        _row("gone.large", 0, 300 << 20), _row("never", 0, 0),
        _row("gone.smaller", 0, 1 << 10))
    at = next(i for i, line in enumerate(lines) if line.startswith("owner"))
    here, large, rest = lines[at + 1:]
    assert here.startswith("here ") and "5 MiB" in here
    assert large.split() == ["gone.large", "0", "B", "300", "MiB", "0", "B",
                             "0", "B", "0", "B", "activation"]
    assert rest == ("and 2 with nothing now, none of which ever had more than "
                    "1 MiB")


def test_long_names_keep_both_ends(monkeypatch):
    name = "Transformer.encoder.layers.31." + "x" * 40 + ".attention.query"
    lines = _summary(monkeypatch, _row(name, 1, 1), _row("y" * 40, 1, 1))
    one, other = lines[-2:]
    assert one.startswith("Transformer.enc…") and ".attention.query " in one
    assert one.index(" ") == 40  # the columns stay in line
    assert other.startswith("y" * 40 + " ")


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
(gone,) = [line for line in summary.splitlines() if line.startswith("gone")]
assert gone.split()[:5] == ["gone", "0", "B", "8", "MiB"], gone
"""], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
