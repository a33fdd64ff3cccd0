# SPDX-License-Identifier: Apache-2.0
"""Streams that PyTorch did not make and somebody destroys.

Asking a destroyed stream anything is a violation on the simulated device; a
driver may answer with an error, or crash.
"""

import ctypes

import pytest

from stratalloc import simulate

simulate.load("64MiB", mode="async", seed=3)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402

MIB = 1 << 20

runtime = ctypes.CDLL("libcudart.so.13")


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go(empty_cache=True)


class _External:
    """A stream of somebody else's, in `with` the current one."""

    def __init__(self):
        self.handle = ctypes.c_void_p()
        assert runtime.cudaStreamCreateWithFlags(
            ctypes.byref(self.handle), 1) == 0
        self.stream = torch.cuda.ExternalStream(self.handle.value)
        self._entered = torch.cuda.stream(self.stream)

    def __enter__(self):
        self._entered.__enter__()
        return self

    def __exit__(self, *error):
        self._entered.__exit__(*error)

    def destroy(self):
        # Its work goes on without it.
        assert runtime.cudaStreamDestroy(self.handle) == 0


def _weight(mib=1, value=1.0):
    return nn.Parameter(torch.full((mib * MIB // 4,), value, device="cuda"))


def _run(external, weight):
    external.stream.wait_stream(torch.cuda.current_stream())
    with external, torch.no_grad():
        weight.add_(1)
        weight.mul_(2)


def test_what_it_used_leaves_and_returns():
    weight = _weight()
    external = _External()
    _run(external, weight)
    external.destroy()  # while its kernels run
    assert stratalloc.evict() >= MIB
    torch.cuda.synchronize()
    assert (weight == 4).all()


def test_memory_allocated_on_it_is_used_again():
    for _ in range(20):
        external = _External()
        with external:
            made = torch.full((20 * MIB // 4,), 3.0, device="cuda")
            assert (made == 3).all()
        del made
        external.destroy()
        assert (torch.full((30 * MIB // 4,), 2.0, device="cuda") == 2).all()


def test_a_stream_of_torch_s_given_by_its_value_is_torch_s_when_torch_uses_it():
    side = torch.cuda.Stream()
    raw = torch.cuda.caching_allocator_alloc(MIB, stream=side)
    torch.cuda.caching_allocator_delete(raw)
    with torch.cuda.stream(side):
        made = torch.zeros(20 * MIB // 4, device="cuda")
    side.synchronize()
    del made
    reserved = torch.cuda.memory_reserved()
    # What the side stream has done with moves to this one without a wait.
    made = torch.zeros(20 * MIB // 4, device="cuda")
    assert torch.cuda.memory_reserved() == reserved
    assert made.sum().item() == 0


def test_a_graph_is_captured_after_it():
    weight = _weight()
    external = _External()
    _run(external, weight)
    external.destroy()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = weight * 3
    graph.replay()
    assert (result == 12).all()
    stratalloc.evict()
    graph.replay()
    assert (result == 12).all()


def test_a_graph_is_captured_on_it():
    weight = _weight()
    external = _External()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=external.stream):
        result = weight * 3
    external.destroy()
    other = _weight(4, 2.0)  # larger than what the graph's handle has free
    assert stratalloc.evict() >= MIB
    graph.replay()
    assert (result == 3).all() and (other == 2).all()


def test_a_raw_capture_of_it_keeps_what_it_used():
    weight, other = _weight(), _weight()
    external = _External()
    result = torch.empty_like(weight)
    torch.cuda.synchronize()
    graph = ctypes.c_void_p()
    with external, torch.no_grad():
        assert runtime.cudaStreamBeginCapture(external.handle, 2) == 0
        torch.mul(weight, 5, out=result)
        stratalloc.evict()
        assert runtime.cudaStreamEndCapture(
            external.handle, ctypes.byref(graph)) == 0
    run = ctypes.c_void_p()
    assert runtime.cudaGraphInstantiate(
        ctypes.byref(run), graph, ctypes.c_ulonglong(0)) == 0
    # Whoever allocates sees that the capture is over.
    del other
    assert _weight().numel()
    external.destroy()
    stratalloc.evict()
    assert runtime.cudaGraphLaunch(run, None) == 0
    assert (result == 5).all()
    assert runtime.cudaGraphExecDestroy(run) == 0
    assert runtime.cudaGraphDestroy(graph) == 0


def test_many_of_them():
    weight = _weight()
    for _ in range(100):
        external = _External()
        _run(external, weight)
        external.destroy()  # the next one may have its value
        stratalloc.evict()
        torch.cuda.synchronize()
        with torch.no_grad():
            weight.fill_(1)
    assert (weight == 1).all()
