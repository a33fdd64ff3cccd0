# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own means against running out of memory, under this allocator:
each does what it does under PyTorch's, and says what that one cannot."""

import gc
import threading

import pytest

from stratalloc import simulate

simulate.load("256MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402
from stratalloc.telemetry.model import Kind  # noqa: E402

MIB = 1 << 20
WIDTH, BATCH = 512, 128
RESULT = BATCH * WIDTH * 4


def net(name, layers=4, device="cuda"):
    """Linear layers with a Tanh behind each, under a root of this name."""
    parts = [part for _ in range(layers)
             for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())]
    return type(name, (nn.Sequential,), {})(*parts).to(device)


def data(**options):
    return torch.randn(BATCH, WIDTH, device="cuda", **options)


def held(category, name=""):
    """Bytes of this category of owners below `name`."""
    return sum(row.bytes for row in stratalloc.holders().rows
               if row.category == category and row.name.startswith(name))


def allocated():
    return stratalloc.stats()["allocated"]


@pytest.fixture(autouse=True)
def _nothing_of_other_tests():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def test_torchs_numbers_are_ours_and_a_peak_has_names():
    model, x = net("Peaks"), data()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = model(x)
    after, peak = (torch.cuda.memory_allocated(),
                   torch.cuda.max_memory_allocated())
    assert (after, peak) == (allocated()["current"], allocated()["peak"])
    assert torch.cuda.memory_reserved() == (
        stratalloc.stats()["reserved"]["current"]) >= peak >= after
    assert after - before == 4 * RESULT  # what each Tanh keeps
    found = stratalloc.holders(at="peak")
    assert found.total == peak == sum(row.bytes for row in found.rows)
    del out
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before == (
        stratalloc.holders(at="peak").total)


@pytest.mark.parametrize("mode", (torch.no_grad, torch.inference_mode))
def test_without_gradients_no_layer_keeps_anything(mode):
    model, x = net("Modes" + mode.__name__), data()
    name = type(model).__name__

    def run():
        """(result, bytes that the call added at most)"""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = model(x)
        return out, torch.cuda.max_memory_allocated() - before

    want, most = run()
    assert held("activation", name) == 4 * RESULT
    want = want.detach().cpu()
    with mode():
        got, less = run()
    assert not got.requires_grad
    assert got.is_inference() == (mode is torch.inference_mode)
    assert held("activation", name) == RESULT  # the result, which lives
    assert less == 2 * RESULT < most
    assert torch.equal(got.cpu(), want)


def test_a_cache_that_is_emptied_gives_back_what_nobody_holds():
    kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    free = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    del free
    held_before = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - 40 * MIB
    assert torch.cuda.memory_allocated() == held_before >= kept.nbytes

    model = net("Served").eval()
    batches = [torch.randn(8, WIDTH) for _ in range(12)]
    want = [model(batch.cuda()).detach().cpu() for batch in batches]
    for number, batch in enumerate(batches):
        with torch.no_grad():
            got = model(batch.cuda())
        if number % 5 == 0:
            torch.cuda.empty_cache()
        assert torch.equal(got.cpu(), want[number])


def test_a_fraction_is_a_limit_and_the_refusal_says_that_it_was():
    reports = []
    stop = stratalloc.on_oom(reports.append)
    torch.cuda.set_per_process_memory_fraction(.25)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == .25
        with pytest.raises(torch.OutOfMemoryError) as refused:
            torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
        assert "memory fraction allows, 64.00 MiB" in str(refused.value)
        report, = reports
        assert report.verdict.kind == "limit", report.verdict
        raised, = [each for each in report.suggestions
                   if each.action == "raise_fraction"]
        assert 80 * MIB <= raised.to <= 82 * MIB
        # More than the fraction in all: the first leaves for the host.
        first = torch.full((40 * MIB,), 7, dtype=torch.uint8, device="cuda")
        second = torch.full((40 * MIB,), 9, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() <= 64 * MIB
        assert stratalloc.stats()["tiers"]["host_used"] >= 16 * MIB
        assert first.cpu().eq(7).all() and second.cpu().eq(9).all()
        del first, second
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        stop()
    torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("reentrant", (False, True))
def test_a_checkpoint_keeps_its_input_and_pays_by_layer(reentrant):
    name = f"Checkpointed{reentrant}"
    model, x = net(name), data(requires_grad=True)
    model(x).square().sum().backward()
    want = [x.grad.clone()] + [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    x.grad = None
    out = checkpoint(model, x, use_reentrant=reentrant)
    assert held("activation", name) == RESULT  # the result alone
    seen = {}

    def look(module, inputs, result):
        """In the recomputation, before the last Tanh: it stops there."""
        seen.update({row.name: row.bytes for row in stratalloc.holders().rows
                     if row.name.startswith(name)
                     and row.category in ("activation", "temporary")})

    hook = model[-2].register_forward_hook(look)
    out.square().sum().backward()
    hook.remove()
    # Each Tanh's result is charged to that Tanh, marked as made again.
    for layer in (1, 3, 5):
        assert seen[f"{name}.{layer}/recomputation"] == RESULT, seen
    got = [x.grad] + [p.grad for p in model.parameters()]
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other)
    del out
    assert not held("activation", name)


def test_layers_that_are_evaluated_keep_no_statistics():
    x = data()
    norm, drop = nn.BatchNorm1d(WIDTH).cuda(), nn.Dropout(.5)
    before = norm.running_mean.clone()
    with torch.no_grad():
        for layer in (norm.eval(), drop.eval(), nn.LayerNorm(WIDTH).cuda()):
            assert layer(x).shape == x.shape
        assert torch.equal(norm.running_mean, before)
        start = torch.cuda.memory_allocated()
        assert drop(x) is x  # nothing is allocated for it
        assert torch.cuda.memory_allocated() == start


def test_pruning_for_good_frees_the_mask_and_the_original():
    pruned = type("Pruned", (nn.Sequential,), {})(
        nn.Linear(WIDTH, WIDTH)).cuda()
    layer = pruned[0]
    size = layer.weight.nbytes
    before = torch.cuda.memory_allocated()
    prune.ln_structured(layer, name="weight", amount=.25, n=2, dim=0)
    stratalloc.watch(pruned)
    assert torch.cuda.memory_allocated() == before + 2 * size
    assert held("buffer", "Pruned") == size  # the mask
    with stratalloc.trace() as trace:
        prune.remove(layer, "weight")
        gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert held("buffer", "Pruned") == 0
    assert (layer.weight == 0).all(dim=1).sum() == WIDTH // 4
    run = trace.run()
    freed = [int(size) for kind, size in zip(run.events["kind"],
                                             run.events["bytes"])
             if Kind(kind) is Kind.FREE_COMPLETED]
    assert freed.count(size) >= 2, freed


class _Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.load(self.paths[index])


def test_pinned_batches_of_forked_workers_arrive_as_inputs(tmp_path):
    model = net("Fed", layers=1)
    rows = torch.randn(64, WIDTH)
    loader = DataLoader(TensorDataset(rows), batch_size=16, pin_memory=True,
                        num_workers=4)
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    seen = []
    for batch, in loader:
        assert batch.is_pinned()
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] > (
            pinned)
        moved = batch.to("cuda", non_blocking=True)
        model(moved)
        assert held("input") >= moved.nbytes
        seen.append(moved.cpu())
    assert torch.equal(torch.cat(seen), rows)

    paths = [tmp_path / f"{number}.pt" for number in range(8)]
    for number, path in enumerate(paths):
        torch.save(torch.full((4,), float(number)), path)
    found = torch.cat(list(DataLoader(_Files(paths), batch_size=4,
                                      num_workers=4)))
    assert found[:, 0].tolist() == list(map(float, range(8)))
    # The workers are gone, and this process's allocator is as it was.
    assert model(data()).isfinite().all()


def test_the_profiler_sees_memory_of_the_device():
    model, x = net("Profiled"), data()
    with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU,
                        torch.profiler.ProfilerActivity.CUDA],
            profile_memory=True, record_shapes=True) as profiled:
        model(x)
    rows = {row.key: row for row in profiled.key_averages()}
    assert rows["aten::tanh"].device_memory_usage == 4 * RESULT
    table = profiled.key_averages().table(sort_by="self_cpu_memory_usage",
                                          row_limit=10)
    assert "CUDA Mem" in table


class _Watcher:
    """Reads the allocated bytes from a thread of its own until stopped."""

    def __init__(self):
        self.peak, self.looks = 0, 0
        self._looked, self._over = threading.Condition(), threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._over.is_set():
            with self._looked:
                self.peak = max(self.peak, torch.cuda.memory_allocated())
                self.looks += 1
                self._looked.notify_all()

    def wait_for_a_look(self):
        with self._looked:
            after = self.looks + 2  # the next one may have begun before
            self._looked.wait_for(lambda: self.looks >= after)

    def stop(self):
        self._over.set()
        self.thread.join()
        return self.peak


def test_a_thread_that_samples_never_sees_more_than_the_peak():
    watcher = _Watcher()
    watcher.thread.start()
    block = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    watcher.wait_for_a_look()
    del block
    missed = torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
    del missed  # between two looks, perhaps
    sampled = watcher.stop()
    assert not watcher.thread.is_alive()
    exact = torch.cuda.max_memory_allocated()
    assert 32 * MIB <= sampled <= exact
    assert exact >= 48 * MIB
