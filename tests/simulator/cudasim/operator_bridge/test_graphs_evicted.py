# SPDX-License-Identifier: Apache-2.0
"""Graphs are replayed while another thread evicts without pause.

A replay asks no guard. What the graph reads that no operator names (seed and
offset of its generators) has to be on the device as well.
"""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="256MiB", mode="async")

# pylint: disable=wrong-import-position
import ctypes

import pytest
import torch
from torch import nn

from python_shim.testing.evicting import evicting
from stratalloc._hooks import foreign_call as _foreign_call

SEEDS = 100
# So large that no generator's tensors lie in the handles of a graph's operands.
ELEMENTS = 1 << 19


@pytest.fixture(autouse=True)
def _clean():
    yield
    torch.cuda.synchronize()
    violations = DEVICE.violations()
    DEVICE.cuda.cudasim_clear_errors()
    DEVICE.clear_violations()
    assert violations == []
    assert DEVICE.launches_without_twin() == 0


def _graph(function, *generators):
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = function()
    # The capture's stream filled seed and offset; torch orders no replay on
    # another stream behind that.
    torch.cuda.synchronize()
    return graph, result


class _Draws:
    """One graph with the default generator, one with a generator of its own."""

    def __init__(self):
        self.own = torch.Generator(device="cuda")
        # Their seeds and offsets lie with these, and leave with them.
        self.beside = torch.ones(ELEMENTS, device="cuda")
        ones = torch.ones(ELEMENTS, device="cuda")
        self.dropped, self.kept = _graph(
            lambda: nn.functional.dropout(ones, 0.5).sum()
        )
        self.drawn, self.uniform = _graph(
            lambda: torch.empty_like(ones).uniform_(generator=self.own).sum(),
            self.own,
        )

    def replay(self, seed):
        torch.manual_seed(seed)
        self.own.manual_seed(seed + 1000)
        self.dropped.replay()
        self.drawn.replay()
        self.beside.add_(1)  # what may leave comes back, to leave again
        return self.kept.item(), self.uniform.item()


def test_random_numbers_of_replays():
    draws = _Draws()
    expected = [draws.replay(seed) for seed in range(SEEDS)]
    assert len(set(expected)) == SEEDS
    with evicting():
        found = [draws.replay(seed) for seed in range(SEEDS)]
    assert found == expected


def test_captures_begin_while_others_evict():
    expected = _Draws().replay(7)
    with evicting():
        for _ in range(10):
            assert _Draws().replay(7) == expected


def _launch(to, source):
    """Work on the current stream that no operator names."""
    cudart = ctypes.CDLL("libcudart.so.13")
    device_to_device = 3
    assert not cudart.cudaMemcpyAsync(
        *(ctypes.c_void_p(p) for p in (to.data_ptr(), source.data_ptr())),
        ctypes.c_size_t(source.nbytes),
        device_to_device,
        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
    )


def test_what_a_call_captures_without_operators():
    """As cudagraph trees do: the compiled graph's call begins the capture."""
    weight = torch.arange(ELEMENTS, dtype=torch.float32, device="cuda")
    result = torch.zeros(ELEMENTS, device="cuda")
    other = torch.ones(ELEMENTS, device="cuda")
    with _foreign_call.entered("call", reads=[weight], writes=[result]):
        graph, _ = _graph(lambda: _launch(result, weight))
    with evicting():
        for n in range(1, 51):
            graph.replay()
            other.add_(1)
            weight.add_(1)  # on the device, and written on it
            assert torch.equal(
                result.cpu(), torch.arange(ELEMENTS).float() + (n - 1)
            )


def test_a_capture_that_torch_did_not_begin():
    cudart = ctypes.CDLL("libcudart.so.13")
    weight = torch.arange(ELEMENTS, dtype=torch.float32, device="cuda")
    other = torch.ones(ELEMENTS, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    raw = ctypes.c_void_p(stream.cuda_stream)
    graph, runs = ctypes.c_void_p(), ctypes.c_void_p()
    with evicting() as evictions, torch.cuda.stream(stream):
        # Not in the middle of an eviction that waits for the whole device, for
        # a graph that has gone: nobody can tell it that a capture is about to
        # begin (allocator/streams/captures.h).
        with evictions.lock:
            assert not cudart.cudaStreamBeginCapture(raw, 0)  # global mode
        result = weight * 2
        # Nobody in the capture names it.
        assert not cudart.cudaStreamEndCapture(raw, ctypes.byref(graph))
        assert not cudart.cudaGraphInstantiate(
            ctypes.byref(runs), graph, ctypes.c_ulonglong(0)
        )
        for n in range(1, 51):
            assert not cudart.cudaGraphLaunch(runs, raw)
            other.add_(1)
            weight.add_(1)
            expected = 2 * (torch.arange(ELEMENTS).float() + (n - 1))
            assert torch.equal(result.cpu(), expected)
    assert not cudart.cudaGraphExecDestroy(runs)
    assert not cudart.cudaGraphDestroy(graph)


def test_a_capture_finds_room_on_a_full_device():
    small = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(2)]).cuda()
    # 320 MiB of 256, and the last ones fill the device to the brim.
    cold = [
        nn.Parameter(torch.full((1 << 22,), float(i), device="cuda"))
        for i in range(20)
    ]
    x = torch.ones(3, 1024, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                expected = small(x)
        torch.cuda.current_stream().wait_stream(side)
        graph, result = _graph(lambda: small(x))
        for _ in range(3):
            result.zero_()
            graph.replay()
            assert torch.equal(result, expected)
            assert [p[7].item() for p in cold] == list(range(20))
