# SPDX-License-Identifier: Apache-2.0
"""MemoryTracer over torch's own allocator, where ours came too late, and over
the memory of the host; what each cannot say."""

import logging
import os
import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB")

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.cuda.init()  # from here on it is too late

_SAID = []


class _Keep(logging.Handler):
    def emit(self, record):
        _SAID.append(record.getMessage())


logging.getLogger("stratalloc").addHandler(_Keep())

import stratalloc  # noqa: E402
from stratalloc._native import gpus as _gpus  # noqa: E402
from stratalloc.compat.gpu_optimizer import MemoryTracer  # noqa: E402
from stratalloc.telemetry.checks import speedscope, timeline  # noqa: E402


@pytest.fixture(scope="module")
def net():
    model = nn.Sequential(
        nn.Linear(64, 64), nn.Sequential(nn.ReLU(inplace=True),
                                         nn.Linear(64, 32))).cuda()
    model(_batch()).sum().backward()  # what cuBLAS needs is there
    return model


def _batch():
    return torch.ones(16, 64, device="cuda")


def _of(events, kind):
    return [event for event in events if event.event_type == kind]


def _left(model):
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks)
                + len(module._backward_hooks) for module in model.modules())
    return (threading.active_count(), hooks, len(os.listdir("/proc/self/fd")),
            torch._C._cuda_isHistoryEnabled(),
            torch._C._autograd._profiler_enabled())


def test_importing_says_what_is_lost():
    assert not stratalloc.is_enabled()
    assert [one for one in _SAID if "gpu_optimizer works over torch's own" in
            one and "backward is charged to nobody" in one]


def test_blocks_are_torchs_and_layers_those_that_ran(net):
    before = _left(net)
    tracer = MemoryTracer()
    first = torch.cuda.memory_stats()
    with tracer.trace(net):
        for _ in range(2):
            net(_batch()).sum().backward()
    last = torch.cuda.memory_stats()
    events = tracer.events
    for kind, name in (("alloc", "allocated"), ("free", "freed")):
        one = _of(events, kind)
        assert len(one) == (last[f"allocation.all.{name}"]
                            - first[f"allocation.all.{name}"])
        assert sum(event.size_bytes for event in one) == (
            last[f"allocated_bytes.all.{name}"]
            - first[f"allocated_bytes.all.{name}"])
    assert events[-1].allocated_bytes == last["allocated_bytes.all.current"]
    assert events[-1].reserved_bytes == last["reserved_bytes.all.current"]
    assert [event.layer_name for event in _of(events, "layer_enter")] == 2 * [
        "", "0", "1", "1.0", "1.1"]
    stats = tracer.get_layer_stats()
    assert stats["0"].total_allocations == stats["1.1"].total_allocations == 2
    assert stats["1.0"].total_allocations == 0  # in place
    assert stats[""].total_allocations == 0  # its batch came before
    assert {event.size_bytes for event in _of(events, "alloc")
            if event.layer_name == "1.1"} == {16 * 32 * 4}
    assert sum(one.total_allocations for one in stats.values()) < len(
        _of(events, "alloc"))  # backward is nobody's
    assert stats[""].peak_allocated == max(
        one.peak_allocated for one in stats.values()) > 0
    assert 0 < stats[""].avg_fragmentation < 1
    assert _left(net) == before


def test_an_exception_and_a_second_tracer_leave_nothing(net, tmp_path):
    before = _left(net)
    one, two = MemoryTracer(), MemoryTracer(max_events=8)
    with pytest.raises(KeyError):
        with one.trace(net), two.trace(net):
            net(_batch())
            with pytest.raises(RuntimeError, match="records already"):
                one.trace(net).__enter__()
            with pytest.raises(RuntimeError, match="mat1 and mat2"):
                net(torch.ones(3, 3, device="cuda"))
            raise KeyError
    assert _left(net) == before
    # The call that failed was left, too.
    assert len(_of(one.events, "layer_exit")) == len(
        _of(one.events, "layer_enter")) == 7
    assert len(two.events) == 8
    one.export_flame_graph(tmp_path / "f.json")
    one.export_timeline(tmp_path / "t.json")
    assert not speedscope.check(tmp_path / "f.json")
    assert not timeline.check(tmp_path / "t.json")


def test_a_history_that_the_program_records_goes_on(net):
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        kept = torch.ones(1000, device="cuda")
        tracer = MemoryTracer()
        with tracer.trace(net):
            net(_batch())
        assert torch._C._cuda_isHistoryEnabled()
        events = tracer.events
        # What came before the trace is not in it: a batch and two layers are.
        assert len(_of(events, "alloc")) == 3
        del kept
    finally:
        torch.cuda.memory._record_memory_history(None)


class _Hookless(nn.Module):
    def register_forward_hook(self, *_, **__):
        raise RuntimeError("no hooks here")


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_a_trace_that_cannot_begin_leaves_nothing(net, device):
    model = nn.Sequential(nn.Identity(), _Hookless())
    before = _left(model)
    tracer = MemoryTracer(device=device)
    with pytest.raises(RuntimeError, match="no hooks here"):
        with tracer.trace(model):
            pass
    assert _left(model) == before
    with tracer.trace(nn.Identity()):  # and it is none under way
        pass
    assert _left(model) == before


def test_without_a_gpu_it_says_so(net, monkeypatch):
    monkeypatch.setattr(_gpus, "why_none", lambda torch: "there is no driver")
    tracer = MemoryTracer()
    before = _left(net)
    with pytest.raises(RuntimeError, match="CUDA is not available.*no driver"):
        with tracer.trace(net):
            pass
    assert _left(net) == before and len(tracer.events) == 0
    tracer.print_summary()


# The host's memory.


@pytest.fixture(scope="module")
def on_cpu():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    model(torch.ones(2, 64)).sum().backward()
    model.zero_grad()
    return model


def test_the_hosts_blocks_are_their_layers_in_backward_too(
        on_cpu, tmp_path, capsys):
    before = _left(on_cpu)
    tracer = MemoryTracer(device="cpu")
    with tracer.trace(on_cpu):
        loss = on_cpu(torch.ones(16, 64)).sum()
        loss.backward()
    assert _left(on_cpu) == before
    stats = tracer.get_layer_stats()
    assert set(stats) == {"", "0", "1", "2"}
    made = _of(tracer.events, "alloc")
    # Forward's output, and in backward the gradients of weight and bias.
    mine = [event.size_bytes for event in made if event.layer_name == "0"]
    assert mine == [16 * 64 * 4, 64 * 64 * 4, 64 * 4]
    assert stats["0"].total_allocations == 3
    assert {event.reserved_bytes - event.allocated_bytes
            for event in tracer.events} == {0}
    sums = 0
    for event in tracer.events:
        sums += event.size_bytes * {"alloc": 1, "free": -1}.get(
            event.event_type, 0)
        assert event.allocated_bytes == sums
    assert sums >= sum(p.numel() * 4 for p in on_cpu.parameters())
    tracer.export_flame_graph(tmp_path / "f.json")
    assert not speedscope.check(tmp_path / "f.json")
    assert "cuda" not in (tmp_path / "f.json").read_text()
    tracer.print_summary()
    assert "reserved free" not in capsys.readouterr().out
    on_cpu.zero_grad()


def test_one_profiler_at_a_time(on_cpu):
    before = _left(on_cpu)
    tracer = MemoryTracer(device="cpu")
    with torch.autograd.profiler.profile():
        with pytest.raises(RuntimeError, match="profiler, which is in use"):
            with tracer.trace(on_cpu):
                pass
    with pytest.raises(KeyError):
        with tracer.trace(on_cpu):
            with pytest.raises(RuntimeError):
                on_cpu(torch.ones(3, 3))
            raise KeyError
    assert _left(on_cpu) == before
    assert len(_of(tracer.events, "layer_exit")) == len(
        _of(tracer.events, "layer_enter")) == 2


class _Calling(nn.Module):
    """Calls somebody before it makes its block."""

    def forward(self, x, call=None):
        if call is not None:
            call()
        return x.neg()


def test_other_threads_are_missing_of_the_host_and_it_says_so(on_cpu):
    before = _left(on_cpu)
    tracer = MemoryTracer(device="cpu")
    del _SAID[:]
    with tracer.trace(on_cpu):
        inside = threading.Thread(target=on_cpu, args=(torch.ones(16, 64),))
        inside.start()
        inside.join()
    assert tracer.get_layer_stats() == {}
    line, = _SAID
    assert "calls of 4 layers on other threads are missing" in line
    del _SAID[:]
    with tracer.trace(on_cpu):
        on_cpu(torch.ones(16, 64))
    assert set(tracer.get_layer_stats()) == {"", "0", "1", "2"}
    assert _SAID == [] and _left(on_cpu) == before


def test_a_call_on_another_thread_ends_none_of_this_one():
    layer, x, tracer = _Calling(), torch.ones(9), MemoryTracer(device="cpu")

    def elsewhere():
        thread = threading.Thread(target=layer, args=(x,))
        thread.start()
        thread.join()

    with tracer.trace(nn.Sequential(layer)):
        kept = [layer(x, elsewhere), x.neg()]
    assert [(event.layer_name, event.size_bytes)
            for event in _of(tracer.events, "alloc")] == [
                ("0", 9 * 4), (None, 9 * 4)]
    del kept
