# SPDX-License-Identifier: Apache-2.0
"""memory_summary(): which rows it has.

On made-up reports, and once on a simulated device's.
"""


from bazel import programs
from stratalloc._reports import reports as _reports

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
                        lambda device: _reports.Report(
                            {**_TOTALS, "layers": list(rows)}))
    return _reports.memory_summary(**how).splitlines()


def _tables(lines):
    """The lines of the tree of now, and of that of the peak."""
    now, peak = (next(i for i, line in enumerate(lines) if line.startswith(
        f"device 0 {time}")) for time in ("now", "at its peak"))
    return lines[now:peak - 1], lines[peak:]


def test_each_table_has_the_bytes_and_categories_of_one_time(monkeypatch):
    now, peak = _tables(_summary(
        monkeypatch, _row("here", 5 << 20, 6 << 20, "gradient"),
        _row("here", 4 << 20, 0, "optimizer_state"),
        _row("gone.large", 0, 300 << 20), _row("never", 0, 0)))
    assert [line.split() for line in now[1:]] == [
        "total 9 MiB gradient 5 MiB, optimizer_state 4 MiB".split(),
        "here 9 MiB gradient 5 MiB, optimizer_state 4 MiB".split()]
    assert [line.split() for line in peak[1:]] == [
        "total 306 MiB activation 300 MiB, gradient 6 MiB".split(),
        "gone.large 300 MiB activation 300 MiB".split(),
        "here 6 MiB gradient 6 MiB".split()]


def test_now_has_a_column_for_each_tier_if_one_is_below_the_device(
        monkeypatch):
    row = {**_row("here", 5 << 20, 9 << 20), "device": 0, "disk": 5 << 20}
    now, peak = _tables(_summary(monkeypatch, row))
    assert now[0].split()[3:] == ["bytes", "disk", "by", "category"]
    assert now[1].split()[1:5] == ["5", "MiB", "5", "MiB"]
    assert peak[0].split()[5:] == ["bytes", "by", "category"]
    assert peak[1].split()[1:3] == ["9", "MiB"]


def test_rows_fill_the_height_of_the_terminal(monkeypatch):
    monkeypatch.setenv("LINES", "36")
    rows = [_row(f"layer{i:02}", 1 << i, 1 << i) for i in range(20)]
    lines = _summary(monkeypatch, *rows)
    assert 36 - 3 - 1 <= len(lines) <= 36 - 3, "and the prompt"
    for table in _tables(lines):
        shown = [line.split()[0] for line in table[2:-1]]
        assert shown == [f"layer{i:02}" for i in range(19, 19 - len(shown), -1)]
        assert table[-1].startswith(f"and {20 - len(shown)} smaller, ")
        assert table[-1].endswith("; all=True or depth=N has them")
    for table in _tables(_summary(monkeypatch, *rows, all=True)):
        assert len(table) == 22
    for table in _tables(_summary(monkeypatch, *rows, depth=0)):
        assert len(table) == 2


def test_host_memory_is_what_was_used_and_what_is_pinned(monkeypatch):
    lines = _summary(monkeypatch)
    (used,) = [line for line in lines if line.startswith("host memory used")]
    (pinned,) = [line for line in lines if line.startswith("  pinned for it")]
    assert used.split()[3:] == ["3", "MiB", "7", "MiB", "64", "MiB"]
    assert pinned.split()[3:] == ["11", "MiB", "13", "MiB", "64", "MiB"]


def test_on_a_device():
    done = programs.run("-c", """
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
now, peak = summary.split("device 0 at its peak")
assert "gone" not in now and "gone" in peak, summary
(gone,) = [line for line in peak.splitlines() if "gone" in line]
assert "8 MiB" in gone, gone
""")
    assert done.returncode == 0, done.stderr


def test_placement_of_a_graphed_training_job_has_what_its_handles_cost():
    done = programs.run("-c", """
from stratalloc import simulate
simulate.load("64MiB")
import torch, stratalloc
stratalloc.enable(host_budget="32MiB", disk_budget=0)
torch.cuda.init()
MIB = 1 << 20
def placement():
    said, free = stratalloc.report()["placement"], stratalloc.fragmentation()
    assert said["separate_classes"] == free.separated, (said, free.to_dict())
    assert sum(said.values()) <= free.stranded + free.in_private_pools
    return said
none = {"separate_classes": 0, "private_pools": 0}
assert stratalloc.report(0)["placement"] == none
net = torch.nn.Linear(16, 16, bias=False, device="cuda")
assert placement() == none, "one class"
x = torch.ones(2, 16, device="cuda")
loss = net(x).square().mean()
three = {"separate_classes": 4 * MIB, "private_pools": 0}
assert placement() == three, placement()
loss.backward()
del loss
separate = placement()["separate_classes"]
assert separate in (2 * MIB, 4 * MIB), separate
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    held = [torch.zeros(64, device="cuda") for i in range(3)]
assert placement() == {"separate_classes": separate,
                       "private_pools": 2 * MIB - 3 * 512}, placement()
held.clear()
assert placement()["private_pools"] == 2 * MIB, "free as a whole"
graph.reset()
torch.cuda.empty_cache()
assert placement() == {"separate_classes": separate, "private_pools": 0}
assert stratalloc.stats()["placement"] == placement()
assert stratalloc.report()["tiers"]["bytes_evicted"] == 0
""")
    assert done.returncode == 0, done.stderr
