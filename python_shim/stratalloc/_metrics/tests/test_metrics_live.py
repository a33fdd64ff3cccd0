# SPDX-License-Identifier: Apache-2.0
"""What a process tells of itself as metrics, against torch's statistics, the
report, and what a recording of the same time tells by the same names. A
training that does not fit its card moves all of them."""

import random
import threading

import pytest

from stratalloc import simulate

simulate.load("32MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import stratalloc  # noqa: E402
from stratalloc._metrics import metrics as _metrics  # noqa: E402
from stratalloc._native import device_metrics as _device_metrics  # noqa: E402
from stratalloc._native import stack as _stack  # noqa: E402
from stratalloc.telemetry.exports import families, metrics  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def enabled(tmp_path_factory):
    assert _metrics.families()[0].name == "build_info", "no CUDA yet"
    assert not torch.cuda.is_initialized()
    assert stratalloc.enable(
        host_budget="24MiB", disk_budget="256MiB",
        disk_dir=str(tmp_path_factory.mktemp("disk")))
    torch.cuda.init()


def _told(modules=_metrics.MODULES):
    """{name: {labels: value}} of this process."""
    return _by_name(_metrics.families(modules))


def _by_name(found):
    told = {one.name: dict(one.samples) for one in found}
    for one in found:
        assert len(told[one.name]) == len(one.samples), (
            f"a series of {one.name} is there twice")
    return told


def _at_rest(ask):
    """(what ask() says, what is told): of one moment, since nothing moved in
    the background from before to after it."""
    for _ in range(1000):
        before, found, after = _told(1000), ask(), _told(1000)
        if before == after:
            return found, after
    raise AssertionError("memory never comes to rest")


class _Training:
    """Linear layers of twice the card, trained one after another."""

    def __init__(self, count=30, seed=1):
        self.chance = random.Random(seed)
        self.layers = [type("Wide", (nn.Sequential,), {})(
            nn.Linear(1024, 512, bias=False)) for _ in range(count)]
        self.layers = [one.cuda() for one in self.layers]

    def step(self):
        for layer in self.chance.sample(self.layers, 5):
            layer(torch.ones(4, 1024, device="cuda")).sum().backward()
            layer.zero_grad(set_to_none=True)


@pytest.fixture(scope="module")
def trained():
    training = _Training()
    for _ in range(4):
        training.step()
    torch.cuda.synchronize()
    return training


def test_memory_is_torchs_to_the_byte(trained):
    stats, told = _at_rest(torch.cuda.memory_stats)
    for name in ("allocated", "requested", "active", "reserved"):
        assert told[f"memory_{name}_bytes"]["0", "device"] == stats[
            f"{name}_bytes.all.current"], name
    for name in ("allocated", "reserved"):
        assert told[f"memory_peak_{name}_bytes"][("0",)] == stats[
            f"{name}_bytes.all.peak"]
    for name, key in (("allocations", "allocation.all.allocated"),
                      ("frees", "allocation.all.freed"),
                      ("allocated_bytes", "allocated_bytes.all.allocated"),
                      ("ooms", "num_ooms"),
                      ("alloc_retries", "num_alloc_retries"),
                      ("driver_allocations", "num_device_alloc")):
        assert told[name][("0",)] == stats[key], name
    assert told["memory_capacity_bytes"][("0",)] == 32 << 20
    assert told["memory_limit_bytes"]["0", "device"] == stratalloc.stats()[
        "gpu_limit"]


def test_owners_tiers_and_traffic_are_the_reports(trained):
    report, told = _at_rest(stratalloc.report)
    for tier in ("device", "host", "disk"):
        of_tier = {}
        owners = {}
        for row in report["layers"]:
            of_tier[row["category"]] = of_tier.get(
                row["category"], 0) + row[tier]
            owners[row["owner"]] = owners.get(row["owner"], 0) + row[tier]
        for category in _stack.CATEGORIES:
            assert told["memory_category_bytes"]["0", tier, category] == (
                of_tier.get(category, 0)), (tier, category)
        assert told["memory_allocated_bytes"]["0", tier] == sum(
            of_tier.values())
        modules = {labels[2]: size for labels, size in
                   told["module_allocated_bytes"].items() if labels[1] == tier}
        assert modules.pop("(other)") == 0
        assert modules == owners
        assert sum(of_tier.values()) > 0, tier
    tiers = report["tiers"]
    assert told["stalls"][("0",)] == tiers["stalls"] > 0
    assert told["stall_seconds"][("0",)] == tiers["stall_ns"] / 1e9 > 0
    moved = told["tier_moved_bytes"]
    assert moved["0", "device", "host"] + moved["0", "device", "disk"] == (
        tiers["bytes_evicted"])
    assert moved["0", "host", "device"] + moved["0", "disk", "device"] == (
        tiers["bytes_restored"])
    assert told["tier_used_bytes"][("host",)] == tiers["host_used"] > 0
    assert told["tier_reserved_bytes"][("host",)] == tiers["host_reserved"]
    assert told["tier_limit_bytes"] == {("host",): 24 << 20,
                                        ("disk",): 256 << 20}


def test_fragmentation_is_what_a_look_at_every_block_finds(trained):
    kept = [torch.ones(300, device="cuda") for _ in range(3)]
    found, told = _at_rest(stratalloc.fragmentation)
    shares = told["memory_fragmentation_ratio"]
    reserved = told["memory_reserved_bytes"]["0", "device"]
    assert reserved == found["reserved"]
    for kind in ("stranded", "pending", "rounding"):
        assert shares["0", kind] == pytest.approx(found[kind] / reserved), kind
    assert shares["0", "releasable"] * reserved == pytest.approx(
        found["releasable"] + found["in_private_pools"])
    assert shares["0", "rounding"] > 0
    del kept


_COUNTERS = [name for name, one in families.NAMES.items()
             if one.kind == "counter"]


def test_counters_never_fall_while_memory_moves(trained):
    before, seen = _told(), set()
    for _ in range(12):
        trained.step()
        now = _told()
        for name in _COUNTERS:
            for labels, value in before.get(name, {}).items():
                assert now[name][labels] >= value, (name, labels)
                if now[name][labels] > value:
                    seen.add(name)
        before = now
    assert seen >= {"tier_moves", "tier_moved_bytes", "tier_move_seconds",
                    "stalls", "stall_seconds", "allocations", "frees",
                    "allocated_bytes"}
    # Which series there are does not change.
    assert {name: set(one) for name, one in before.items()} == {
        name: set(one) for name, one in _told().items()}


def _recorded(trained):
    """(a Run, what was told at its beginning, and at its end). Nothing moved in
    the background while it began and while it ended."""
    def told():
        return {name: samples for name, samples in _told().items()
                if not name.startswith("trace_")}

    for _ in range(100):
        outside, trace = told(), stratalloc.trace()
        with trace:
            before = told()
            for _ in range(6):
                trained.step()
            torch.cuda.synchronize()
            after = told()
        if (outside, after) == (before, told()):
            return trace.run(), before, after
    raise AssertionError("memory never comes to rest")


def test_a_recording_of_the_same_time_tells_the_same(trained):
    """By the same names: gauges at the end, counters from start to end."""
    run, before, after = _recorded(trained)
    recorded = _by_name(metrics.families(run))
    for name in ("memory_allocated_bytes", "memory_requested_bytes",
                 "memory_active_bytes", "memory_reserved_bytes",
                 "memory_capacity_bytes", "memory_category_bytes",
                 "memory_fragmentation_ratio",
                 "memory_largest_free_block_bytes"):
        for labels, value in recorded[name].items():
            assert after[name][labels] == pytest.approx(value), (name, labels)
    for name in ("allocations", "frees", "allocated_bytes", "ooms", "stalls",
                 "prefetch_late", "alloc_retries", "tier_moves",
                 "tier_moved_bytes"):
        for labels, value in recorded[name].items():
            assert after[name][labels] - before[name][labels] == value, (
                name, labels)
    for name in ("stall_seconds", "tier_move_seconds"):
        for labels, value in recorded[name].items():
            # Two clocks, read one after the other: the unit is the same.
            live = after[name][labels] - before[name][labels]
            assert value / 5 <= live <= value * 5, (name, labels)
    moved = {key: value for key, value in recorded["tier_moves"].items()}
    assert sum(moved.values()) > 10
    assert _told()["trace_events"][()] >= len(run.events)


def test_what_is_read_while_others_train_is_of_one_moment(trained):
    seen, over = [], threading.Event()

    def on_device():
        return {told["memory_allocated_bytes"]["0", "device"]
                for told in tuple(seen)}

    def scrape():
        while not over.is_set():
            seen.append(_told())

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        # The scraper alone may run for long: until it has met the training.
        while len(seen) < 50 or (len(seen) < 10_000 and len(on_device()) <= 3):
            trained.step()
    finally:
        over.set()
        scraper.join()
    for told in seen:
        reserved = told["memory_reserved_bytes"]["0", "device"]
        shares = told["memory_fragmentation_ratio"]
        free = sum(shares["0", kind] for kind in ("stranded", "releasable",
                                                  "pending"))
        assert min(shares.values()) >= 0
        assert free * reserved == pytest.approx(
            reserved - told["memory_allocated_bytes"]["0", "device"])
    assert len(on_device()) > 3


def test_every_name_is_told_by_whom_the_table_says(trained):
    live = set(_told())
    assert live == {name for name, one in families.NAMES.items()
                    if one.of != families.RECORDED}
    with stratalloc.trace() as trace:
        trained.step()
        torch.cuda.synchronize()
    recorded = {one.name for one in metrics.families(trace.run(), modules=3)}
    assert recorded == {name for name, one in families.NAMES.items()
                        if one.of != families.LIVE}


def test_scopes_are_bounded_and_none_is_lost(trained):
    for i in range(60):
        with stratalloc.scope(f"part{i}"):
            torch.ones(1 << 12, device="cuda")
    with stratalloc.scope("(other)"):  # as the rest is called
        kept = torch.ones(1 << 10, device="cuda")
    with stratalloc.scope("long" * 1000):
        long = torch.ones(1 << 10, device="cuda")
    every = _told(modules=1000)["module_allocated_bytes"]
    assert len(every) > 180 and max(len(one[2]) for one in every) == 256
    assert sum(every["0", tier, "(other)"] for tier in
               _device_metrics.TIERS) == kept.nbytes
    few = _told(modules=3)["module_allocated_bytes"]
    assert len(few) == 4 * 3  # and (other), on each tier
    none = _told(modules=0)["module_allocated_bytes"]
    assert {labels[2] for labels in none} == {"(other)"}
    # On all tiers together, whatever moves in the background meanwhile.
    assert len({sum(one.values()) for one in (every, few, none)}) == 1
    del kept, long


def test_a_rank_is_a_label_of_every_sample(trained, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    for one in _metrics.families():
        assert one.labels[-1] == "rank"
        assert {labels[-1] for labels, _ in one.samples} == {"3"}
    for odd in ("", "x", "-1", "٣"):
        monkeypatch.setenv("RANK", odd)
        assert all("rank" not in one.labels for one in _metrics.families())


def test_reset_peaks_are_told(trained):
    torch.cuda.reset_peak_memory_stats()
    peak, told = _at_rest(torch.cuda.max_memory_allocated)
    assert told["memory_peak_allocated_bytes"][("0",)] == peak
    torch.cuda.reset_accumulated_memory_stats()
    assert _told()["allocations"][("0",)] == 0
