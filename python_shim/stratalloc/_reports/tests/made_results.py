# SPDX-License-Identifier: Apache-2.0
"""One result of each kind, made by hand, and a terminal of 80 columns."""

import pytest

from stratalloc._reports.explanation import Explanation
from stratalloc._reports.fragmentation import Fragmentation, Hole
from stratalloc._reports.diff import Change, Growth, Mark
from stratalloc._reports.holders import Holder, Holders
from stratalloc._reports.leaks import Leaks
from stratalloc._reports.reports import Report
from stratalloc._reports.residency import Residency
from stratalloc._reports.stats import Stats

MIB = 1 << 20


@pytest.fixture(autouse=True)
def of_80_columns(monkeypatch):
    """80 x 24, whatever the test runs in."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.delenv("NO_COLOR", raising=False)


def holders():
    rows = [Holder(f"Net.layers.{i}.{name}", category, size, 1, "device")
            for i in range(4)
            for name, category, size in (("up", "parameter", 4 * MIB),
                                         ("up", "gradient", 4 * MIB),
                                         ("norm", "parameter", 2048))]
    rows += [Holder("Net.head", "parameter", 3 * MIB, 2, "host"),
             Holder("[red]x[/red]\n<b>", "unknown", 512, None, "device")]
    return Holders(sum(row.bytes for row in rows), "now", 0, rows)


def growth():
    return Growth("a to b", 1, [Change("Net.0", "activation", 3 * MIB, 3),
                                Change("Net.1", "activation", -MIB, -1)])


def leaks(steps=12):
    found = Leaks(12, 0, False)
    for i in range(steps):
        held = {("Net.cache", "activation"): (MIB * i, i)}
        found._marks.append(Mark("", 0, MIB * i, held))
        found.seen += 1
    return found


def fragmentation():
    sizes = {"reserved": 10 * MIB, "allocated": 4 * MIB, "rounding": 512,
             "pending": 0, "stranded": 2 * MIB, "separated": MIB,
             "releasable": 4 * MIB, "in_private_pools": 0}
    return Fragmentation(0, sizes, [
        Hole(i << 21, 2 * MIB, 2 * MIB // 12, 1 + i, f"Net.{i}", "activation",
             1024, 7, "transient") for i in range(12)])


def explanation(frees=6):
    return Explanation(
        3 * MIB, 4 * MIB, "nothing", True, "", 0, 0, 0, 0, MIB, True,
        "raise gpu_limit by 1 MiB",
        [{"address": i, "bytes": 512, "owner": "Net", "category": "buffer"}
         for i in range(frees)])


def mark():
    return Mark("epoch 2", 0, 5 * MIB, {
        ("Net.0", "parameter"): (2 * MIB, 1),
        ("Head", "buffer"): (3 * MIB, 2)})


def residency():
    return Residency(device=3 * MIB, host=512, disk=0)


def report():
    return Report({**stats(), "layers": [
        {"owner": "Net.0", "category": "parameter", "live": 5 * MIB,
         "device": 3 * MIB, "host": 2 * MIB, "disk": 0, "at_peak": 4 * MIB}]})


def stats():
    both = {"current": 5 * MIB, "peak": 400 * MIB}
    return Stats({
        "device": 0, "gpu_limit": 1 << 30, "live": 5 * MIB,
        "stays": {"activations": MIB, "evictable": 4 * MIB},
        "allocated": both, "reserved": both,
        "config": {"tiering": True, "host_budget": 64 * MIB, "disk_budget": 0},
        "tiers": {"bytes_evicted": 0, "bytes_restored": 0, "bytes_to_disk": 0,
                  "bytes_from_disk": 0, "stalls": 2, "stall_ns": 1500000,
                  "host_used": 3 * MIB, "host_peak": 7 * MIB,
                  "host_reserved": 11 * MIB, "host_reserved_peak": 13 * MIB},
    }, (2 * MIB, 0))


ALL = [holders, growth, leaks, fragmentation, explanation, stats, mark,
       residency, report]
