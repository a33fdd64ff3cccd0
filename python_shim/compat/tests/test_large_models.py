# SPDX-License-Identifier: Apache-2.0
"""Means of large models of sketched layers, under this allocator: profiles,
checkpoints, mixed precision, a search for the batch, several cards, streams."""

import gc
import math
import os
import sys
import threading
import warnings

os.environ["MPLBACKEND"] = "Agg"

import pytest  # noqa: E402

from stratalloc import simulate  # noqa: E402

simulate.load("64MiB", devices=4)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
import stratalloc  # noqa: E402

sys.path.insert(0, "tests/system/documents/stand_ins")

import panther  # noqa: E402

MIB = 1 << 20


def sketched(*sizes, name="Sketched"):
    """Sketched layers of half the rank, a ReLU between two."""
    parts = []
    for inner, outer in zip(sizes, sizes[1:]):
        parts += [panther.nn.SKLinear(inner, outer, inner // 2), nn.ReLU()]
    return type(name, (panther.nn.Sequential,), {})(*parts[:-1])


def factors(model):
    """Bytes of its parameters, in torch's steps of 512."""
    return sum(-parameter.nbytes // 512 * -512
               for parameter in model.parameters())


@pytest.fixture(autouse=True)
def _nothing_of_other_tests():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)


def test_an_operation_costs_what_its_graph_keeps():
    import psutil

    def now():
        return {"cpu": psutil.Process().memory_info().rss,
                "gpu_allocated": torch.cuda.memory_allocated(),
                "gpu_cached": torch.cuda.memory_reserved()}

    torch.cuda.empty_cache()
    before = now()
    layer = panther.nn.SKLinear(1024, 512, sketch_size=256).cuda()
    out = layer(torch.randn(128, 1024, device="cuda"))
    kept = factors(layer)
    del layer
    grown = {key: value - before[key] for key, value in now().items()}
    # The factors, the input and what is between them live by the graph.
    want = out.nbytes + kept + 128 * (1024 + 256) * 4
    assert grown["gpu_allocated"] == want
    assert grown["gpu_cached"] >= want and set(grown) == set(before)
    by_layer = stratalloc.holders()
    assert sum(row.bytes for row in by_layer.rows) == (
        torch.cuda.memory_allocated())


def test_a_breakdown_by_layer_is_read_instead_of_computed():
    for inner, outer, rank in ((256, 128, 64), (512, 256, 128)):
        plain, thin = (type(name, (nn.Sequential,), {})(layer).cuda()
                       for name, layer in (
                           ("Plain", nn.Linear(inner, outer)),
                           ("Thin", panther.nn.SKLinear(inner, outer, rank))))
        held = {row.name: row.bytes for row in stratalloc.holders().rows
                if row.category == "parameter"}
        assert held["Plain.0"] == 4 * (inner * outer + outer)
        assert held["Thin.0"] == 4 * (rank * (inner + outer) + outer)
        del plain, thin
        gc.collect()


def test_segments_with_checkpoints_train_as_without():
    model = sketched(256, 128, 64, 32, name="Segments").cuda()
    x, y = torch.randn(64, 256).cuda(), torch.randn(64, 32).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def activations():
        return sum(row.bytes for row in stratalloc.holders().rows
                   if row.category == "activation"
                   and row.name.startswith("Segments"))

    def step(inner):
        optimizer.zero_grad()
        out = inner(x)
        kept = activations()
        nn.functional.mse_loss(out, y).backward()
        return [p.grad.clone() for p in model.parameters()], kept

    def segmented(x):
        for part in (model[:3], model[3:]):
            x = checkpoint(part, x, use_reentrant=False)
        return x

    want, whole = step(model)
    got, less = step(segmented)
    assert less < whole / 2
    for one, other in zip(got, want):
        torch.testing.assert_close(one, other)
    optimizer.step()
    assert sum(row.bytes for row in stratalloc.holders().rows
               if row.category == "optimizer_state") >= 2 * factors(model)


def test_mixed_precision_trains_and_its_copies_are_temporary():
    model = sketched(64, 32, 10, name="Mixed").cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with warnings.catch_warnings():  # the names that the guide has
        warnings.simplefilter("ignore", FutureWarning)
        scaler = torch.cuda.amp.GradScaler()
        cast = torch.cuda.amp.autocast()
    x, y = torch.randn(64, 64).cuda(), torch.randint(0, 10, (64,)).cuda()
    losses, after = [], []
    for _ in range(12):
        optimizer.zero_grad()
        with cast:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            assert (x @ model[0].down).dtype is torch.float16
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        del out, loss
        after.append(torch.cuda.memory_allocated())
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[1]
    assert len(set(after[3:])) == 1  # nothing stays behind a step


class _Search:
    """Halves between two batch sizes, by what a step of each says."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.refused = {}

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
        loss.backward()
        return loss

    def largest(self, low, high, sample):
        best = low
        while low <= high:
            middle = (low + high) // 2
            try:
                self.step(*(part[:middle] for part in sample))
                best, low = middle, middle + 1
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                self.refused[middle] = error
                high = middle - 1
            torch.cuda.empty_cache()
        return best


def test_a_search_for_the_batch_survives_what_is_refused():
    model = nn.Sequential(nn.Linear(64, 16384), nn.ReLU(),
                          nn.Linear(16384, 10)).cuda()
    search = _Search(model, torch.optim.SGD(model.parameters(), lr=.01))
    data = TensorDataset(torch.randn(768, 64), torch.randint(0, 10, (768,)))
    sample = next(iter(DataLoader(data, batch_size=512)))
    best = search.largest(8, 512, sample)
    assert 64 <= best < 512 and search.refused
    assert min(search.refused) == best + 1
    for error in search.refused.values():
        assert type(error) is torch.OutOfMemoryError
        assert len(error.args) == 1
    # The exceptions hold frames, and those activations.
    search.refused.clear()
    del error
    gc.collect()
    for x, y in DataLoader(data, batch_size=best, shuffle=True):
        assert search.step(x, y).isfinite()
        search.optimizer.step()
    search.optimizer.zero_grad()
    assert torch.cuda.memory_allocated() < 8 * MIB
    assert stratalloc.explain("48 MiB").fits
    assert torch.ones(48 * MIB, dtype=torch.uint8,
                      device="cuda").cpu().all()


def test_layers_on_four_cards_are_each_cards_own():
    model = sketched(256, 128, 64, 32, 16, name="Spread")
    want_of = torch.randn(32, 256)
    want = model(want_of).detach()
    layers = [part for part in model
              if isinstance(part, panther.nn.SKLinear)]
    for device, layer in enumerate(layers):
        layer.to(f"cuda:{device}")
        assert layer.weight.device == torch.device("cuda", device)
        gc.collect()
        assert sum(row.bytes for row in
                   stratalloc.holders(device=device).rows
                   if row.category == "parameter"
                   and row.name.startswith("Spread")) == factors(layer)
    x = want_of.to("cuda:0")
    for layer in layers[:-1]:
        x = torch.relu(layer(x.to(layer.down.device)))
    x = layers[-1](x.to(layers[-1].down.device)).to("cuda:0")
    assert x.shape == (32, 16)
    torch.testing.assert_close(x.detach().cpu(), want, rtol=1e-4, atol=1e-5)


def test_a_stream_of_chunks_holds_one_of_them():
    model = panther.nn.SKLinear(256, 10, sketch_size=128).cuda().eval()
    rows = torch.randn(10000, 256)
    parts = []
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        for start in range(0, len(rows), 500):
            part = model(rows[start:start + 500].cuda())
            parts.append(part.cpu())
            del part
            torch.cuda.empty_cache()
        most = torch.cuda.max_memory_allocated() - before
        found = torch.cat(parts)
        assert found.shape == (10000, 10)
        assert most <= 500 * (256 + 128 + 2 * 10) * 4 + 4096
        torch.testing.assert_close(
            found, model.cpu()(rows), rtol=1e-4, atol=1e-5)


def test_a_monitor_and_its_picture():
    from matplotlib import pyplot

    log, over, looked = [], threading.Event(), threading.Semaphore(0)

    def watch():
        while not over.is_set():
            log.append(torch.cuda.memory_allocated() / MIB)
            looked.release()

    threads = threading.active_count()
    thread = threading.Thread(target=watch)
    thread.start()
    block = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    for _ in range(len(log) + 2):
        looked.acquire()
    del block
    seen = len(log)
    while len(log) < seen + 2:
        looked.acquire()
    over.set()
    thread.join()
    assert threading.active_count() == threads
    assert max(log) >= log[-1] + 32
    assert max(log) <= torch.cuda.max_memory_allocated() / MIB
    figure, axes = pyplot.subplots()
    line, = axes.plot(log)
    figure.canvas.draw()
    assert list(line.get_ydata()) == log
    pyplot.close(figure)
