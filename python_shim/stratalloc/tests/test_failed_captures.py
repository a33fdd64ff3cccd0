# SPDX-License-Identifier: Apache-2.0
"""After a capture that failed everything leaves and returns as before.

Torch up to 2.12 ends no route whose capture it could not end, and 2.13 releases
no such capture's use of its pool, so the allocator has to see by itself that the
capture is over, whichever thread asks.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=5, devices=2)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go(empty_cache=True)


class _Model:
    """84 MiB of parameters on a card of 64."""

    def __init__(self, device=0):
        self.parts = [nn.Parameter(torch.full((2 * MIB,), float(i),
                                              device=f"cuda:{device}"),
                                   requires_grad=False)
                      for i in range(10)]  # fmt: skip
        self.added = 0

    def forward(self):
        for part in self.parts:
            part.add_(1)
        self.added += 1

    def step(self):
        """A list operator that fits in slices only."""
        torch._foreach_add_(self.parts, 1)  # pylint: disable=protected-access
        self.added += 1

    def check(self):
        assert [p[7].item() for p in self.parts] == [
            i + self.added for i in range(10)]  # fmt: skip


def _spoil(model=None, device=0):
    """A capture in which somebody waits for the device; of the model's first
    parts, if there is one."""
    stream = torch.cuda.Stream(device)  # torch's default is its first device's
    with torch.cuda.device(device), pytest.raises(RuntimeError):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            for part in model.parts[:3] if model else []:
                part.mul_(1)
            torch.cuda.synchronize()


def _goes_on(model):
    for _ in range(2):
        model.step()
        model.forward()
    model.check()
    stays = stratalloc.report()["stays"]
    assert "pinned by a graph" not in stays, stays


@pytest.mark.parametrize("reads", [False, True])
def test_its_own_thread_goes_on(reads):
    model = _Model()
    for _ in range(3):
        _spoil(model if reads else None)
        stays = stratalloc.report()["stays"]
        assert "pinned by a graph" not in stays, stays
        _goes_on(model)


@pytest.mark.parametrize("reads", [False, True])
def test_others_go_on_after_its_thread(reads):
    model = _Model()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_spoil, model if reads else None).result()
    _goes_on(model)


def test_others_go_on_while_its_thread_does_something_else():
    model = _Model()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_spoil, model).result()
        _goes_on(model)
        pool.submit(_goes_on, model).result()


def test_another_device_goes_on():
    model = _Model()
    _spoil(device=1)
    _goes_on(model)


def test_a_graph_of_the_same_pool_keeps_what_it_reads():
    model = _Model()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with torch.cuda.graph(graph, pool=pool):
        model.parts[0].add_(1)
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
            model.parts[0].mul_(1)
            model.parts[1].mul_(1)
            torch.cuda.synchronize()
    for n in range(1, 4):
        for part in model.parts[1:]:
            part.add_(1)
        graph.replay()
        assert [p[7].item() for p in model.parts] == [
            i + n for i in range(10)]  # fmt: skip
    torch.cuda.synchronize()
    del graph  # the only one that there is
    model.added = 3
    _goes_on(model)


def test_a_pool_of_the_user_s_is_no_capture():
    model = _Model()
    for device in (0, 1):
        with torch.cuda.device(device), torch.cuda.use_mem_pool(
            torch.cuda.MemPool()
        ):
            made = torch.ones(MIB, device=f"cuda:{device}")
            with torch.cuda.device(0):
                model.forward()
                model.step()
            assert made.sum().item() == MIB
    _goes_on(model)


def test_a_capture_elsewhere_stops_no_slices_here():
    model = _Model()
    with torch.cuda.device(1):
        value = torch.zeros(MIB, device="cuda:1")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(1),
                              capture_error_mode="thread_local"):  # fmt: skip
            value.add_(1)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(model.step).result()
        graph.replay()
        assert value.sum().item() == MIB
    _goes_on(model)
