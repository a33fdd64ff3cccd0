# SPDX-License-Identifier: Apache-2.0
"""A capture changes no byte and reads no value; replays compute the values.

Under PyTorch's own allocator and under ours, compared with eager and the CPU.
"""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="512MiB")

# pylint: disable=wrong-import-position
import copy
import ctypes
import math

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _clean():
    yield
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0


def _capture(function, **arguments):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **arguments):
        result = function()
    return graph, result


def _device_bytes():
    """Every byte of the allocator's mapped memory, by address."""
    torch.cuda.synchronize()
    return {
        segment["address"]: ctypes.string_at(
            segment["address"] + DEVICE.delta(), segment["total_size"]
        )
        for segment in torch.cuda.memory_snapshot()
    }


def _changed(before, after):
    """Addresses of segments whose bytes differ; new segments do not count."""
    return [at for at, was in before.items() if after.get(at, was) != was]


def test_memory_that_a_capture_reuses_keeps_its_bytes_until_replay():
    """As graph trees do: an input's memory is free in the next capture."""
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        first.capture_begin(pool=pool)
        x = torch.empty(1 << 20, device="cuda")
        first.capture_end()
        x.fill_(1.0)
        torch.cuda.synchronize()
        second.capture_begin(pool=pool)
        y = x * 2
        address = x.data_ptr()
        del x
        z = y + 1
        second.capture_end()
        assert z.data_ptr() == address
        assert z.tolist() == [1.0] * (1 << 20)
        second.replay()
        assert z.tolist() == [3.0] * (1 << 20)


def _adam_step(parameter):
    optimizer = torch.optim.Adam([parameter], lr=0.1, capturable=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def _norm_step(x):
    norm = nn.BatchNorm1d(x.shape[1]).cuda()
    torch.cuda.synchronize()
    return lambda: norm(x)


CAPTURED = {
    "fresh result": lambda x, i: lambda: x * 2 + 1,
    "in place": lambda x, i: lambda: x.add_(1).sigmoid_(),
    "out": lambda x, i: lambda o=torch.zeros_like(x): torch.mul(x, 3, out=o),
    "out that grows": lambda x, i: lambda: torch.mul(
        x, 3, out=torch.empty(0, device="cuda")
    ),
    "list": lambda x, i: lambda: torch._foreach_add_([x, x[:3]], 1.0),
    "index_put_": lambda x, i: lambda: x.index_put_((i,), x[0].clone(), True),
    "scatter_": lambda x, i: lambda: x.scatter_(0, i[:, None], 7.0),
    "integers": lambda x, i: lambda: i.add_(1),
    "masks": lambda x, i: lambda: (x > 0).logical_not_(),
    "fill": lambda x, i: lambda: x.zero_(),
    "copy": lambda x, i: lambda: x[1:].copy_(x[:-1].clone()),
    "conversion": lambda x, i: lambda: x.copy_(x.half().t().contiguous().t()),
    "from the host": lambda x, i: lambda h=torch.ones(
        x.shape
    ).pin_memory(): x.copy_(h, non_blocking=True),
    "running statistics": lambda x, i: _norm_step(x),
    "random": lambda x, i: lambda: nn.functional.dropout(x).normal_(),
    "view": lambda x, i: lambda: x.t()[1:].neg_(),
    "concatenation": lambda x, i: lambda: torch.cat([x, x]).split(2),
    "optimizer": lambda x, i: lambda: _adam_step(x),
    "backward": lambda x, i: lambda: torch.autograd.grad(
        nn.functional.softmax(x.requires_grad_() @ x.t(), 1).square().sum(), x
    ),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_operator_changes_no_byte_before_replay(name):
    pool = torch.cuda.graph_pool_handle()
    # Memory of the pool that is free and not zero.
    graph, used = _capture(
        lambda: [torch.empty(1 << 18, device="cuda") for _ in range(4)],
        pool=pool,
    )
    for each in used:
        each.fill_(5.0)
    x = torch.randn(16, 12, device="cuda")
    index = torch.tensor([3, 1, 3, 0], device="cuda")
    work = CAPTURED[name](x, index)
    expected = x.clone(), index.clone()
    del each, used
    before = _device_bytes()
    replayed, result = _capture(work, pool=pool)
    assert _changed(before, _device_bytes()) == []
    assert torch.equal(x, expected[0]) and torch.equal(index, expected[1])
    replayed.replay()
    assert _changed(before, _device_bytes()) != []
    del graph, result


def _out_of_range(shape):
    """Integers that are no index, as memory may hold that nothing wrote."""
    return torch.full(shape, -(1 << 40), device="cuda")


def _pooled(i):
    """The backward of max pooling, whose kernel on the CPU checks no index."""
    return torch.ops.aten.max_pool2d_with_indices_backward(
        torch.ones(1, 2, 2, 2, device="cuda"),
        torch.zeros(1, 2, 4, 4, device="cuda"),
        [2, 2], [2, 2], [0, 0], [1, 1], False, i.view(1, 2, 2, 2),
    )  # fmt: skip


# By name: what the graph does with indices, on either device.
READERS = {
    "embedding": lambda t, i: nn.functional.embedding(i, t),
    "embedding_bag": lambda t, i: nn.functional.embedding_bag(
        i.view(2, 4), t, mode="sum"
    ),
    "gather": lambda t, i: t.gather(0, i[:, None]),
    "index": lambda t, i: t[i] * 2,
    "index_select": lambda t, i: t.index_select(0, i),
    "index_add": lambda t, i: t.index_add(0, i, t[:8]),
    "index_put": lambda t, i: t.index_put((i,), t[0]),
    "scatter": lambda t, i: t.scatter(0, i[:, None], 7.0),
    "take": lambda t, i: t.take(i),
    "cross_entropy": lambda t, i: nn.functional.cross_entropy(t[:8], i),
    "computed": lambda t, i: t[(i * 3) % 10].gather(1, i[:, None] % 3),
    "lengths": lambda t, i: t[:8].repeat_interleave(
        i.clamp(0, 0) + 2, 0, output_size=16
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_capture_reads_no_index_that_is_out_of_range(name):
    read = READERS[name]
    table = torch.randn(10, 3)
    on_device, index = table.cuda(), _out_of_range((8,))
    graph, result = _capture(lambda: read(on_device, index))
    for seed in range(3):
        good = torch.randint(0, 3, (8,), generator=_seeded(seed))
        index.copy_(good)
        graph.replay()
        assert torch.equal(result.cpu(), read(table, good))


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_capture_of_unchecked_kernel_reads_no_index():
    index = _out_of_range((8,))
    graph, result = _capture(lambda: _pooled(index))
    index.copy_(torch.tensor([0, 2, 8, 10, 5, 7, 13, 15]))
    graph.replay()
    expected = torch.zeros(2, 16)
    expected[0, [0, 2, 8, 10]] = 1
    expected[1, [5, 7, 13, 15]] = 1
    assert torch.equal(result.cpu().view(2, 16), expected)


def test_capture_accepts_probabilities_that_are_no_number():
    chance = torch.full((1000,), math.nan, device="cuda")
    graph, drawn = _capture(lambda: torch.bernoulli(chance))
    ones = torch.ones(1000, device="cuda")
    chance.fill_(0.25)
    torch.manual_seed(3)
    graph.replay()
    replayed = drawn.cpu()
    torch.manual_seed(3)
    assert torch.equal(replayed, torch.bernoulli(ones * 0.25).cpu())
    assert 150 < replayed.sum().item() < 350


def test_capture_refuses_what_no_values_mend():
    x = torch.ones(3, 4, device="cuda")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            _ = x @ x
    graph, y = _capture(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [[2.0] * 4] * 3


class _Pictures(nn.Module):
    """Everything that keeps something from forward for backward."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(6, 36)
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(36, 5)

    def forward(self, x, kinds):
        x = x + self.kinds(kinds).view(-1, 1, 6, 6)
        x = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.last(x.flatten(1))


def _train(model, call, inputs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for x, kinds in inputs:
        device = next(model.parameters()).device
        optimizer.zero_grad(set_to_none=True)
        loss = call(x.to(device), kinds.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _equal_states(one, other):
    """The same finite numbers, bit by bit."""
    for a, b in zip(one.state_dict().values(), other.state_dict().values()):
        assert a.isfinite().all().item()
        assert torch.equal(a.cpu(), b.cpu())


def test_graphed_callables_train_as_eager_and_the_cpu():
    """The backward is captured before the forward has ever run."""
    torch.manual_seed(0)
    cpu = _Pictures()
    eager, graphed = copy.deepcopy(cpu).cuda(), copy.deepcopy(cpu).cuda()
    samples = (
        torch.randn(4, 1, 6, 6, device="cuda"),
        torch.randint(0, 6, (4,), device="cuda"),
    )
    call = torch.cuda.make_graphed_callables(graphed, samples)
    graphed.load_state_dict(cpu.state_dict())  # the warm-up moved statistics
    inputs = [
        (torch.randn(4, 1, 6, 6), torch.randint(0, 6, (4,))) for _ in range(5)
    ]
    losses = [
        _train(model, function, inputs)
        for model, function in ((cpu, cpu), (eager, eager), (graphed, call))
    ]
    assert all(map(math.isfinite, losses[0]))
    assert losses[0] == losses[1] == losses[2]
    _equal_states(cpu, graphed)
    _equal_states(cpu, eager)


def test_several_graphed_callables_share_a_pool():
    torch.manual_seed(0)
    cpu = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
    graphed = copy.deepcopy(cpu).cuda()
    # Each is the memory that its graph reads its input from.
    samples = tuple(
        (torch.zeros(8, 16, device="cuda", requires_grad=True),)
        for _ in graphed
    )
    calls = torch.cuda.make_graphed_callables(tuple(graphed), samples)

    def chained(x, _):
        for call in calls:
            x = call(x).relu()
        return x

    inputs = [(torch.randn(8, 16), torch.zeros(1)) for _ in range(5)]
    expected = _train(
        cpu,
        lambda x, _: cpu[2](cpu[1](cpu[0](x).relu()).relu()).relu(),
        inputs,
    )
    assert all(map(math.isfinite, expected))
    assert _train(graphed, chained, inputs) == expected
    _equal_states(cpu, graphed)


def test_graphs_of_forward_and_step_share_a_pool():
    """Evaluation and training of one model, captured into one pool, in turns;
    the second capture reuses what the first has freed."""
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 4))
    model = copy.deepcopy(cpu).cuda()
    x = torch.zeros(8, 20, device="cuda")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step(net, optimizer, batch):
        optimizer.zero_grad(set_to_none=False)
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [
        torch.optim.SGD(net.parameters(), lr=0.1) for net in (cpu, model)
    ]
    for parameter in cpu.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        evaluation, seen = _capture(lambda: model(x).softmax(1))
    training, loss = _capture(
        lambda: step(model, optimizers[1], x), pool=evaluation.pool()
    )
    assert evaluation.pool() == training.pool()
    for _ in range(5):
        batch = torch.randn(8, 20)
        x.copy_(batch)
        training.replay()
        evaluation.replay()
        expected = step(cpu, optimizers[0], batch).item()
        assert math.isfinite(expected)
        assert loss.item() == expected
        with torch.no_grad():
            assert torch.equal(seen.cpu(), cpu(batch).softmax(1))
    _equal_states(cpu, model)


@pytest.mark.parametrize("train", [False, True], ids=["forward", "training"])
def test_cudagraphs_backend_computes_as_eager_and_the_cpu(train):
    """Graph trees: captures of two shapes reuse one another's memory."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    eager, graphed = copy.deepcopy(cpu).cuda(), copy.deepcopy(cpu).cuda()
    compiled = torch.compile(graphed, backend="cudagraphs", dynamic=False)
    optimizers = {
        model: torch.optim.SGD(model.parameters(), lr=0.1)
        for model in (cpu, eager, graphed)
    }

    def run(model, call, x):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(train):
            y = call(x)
        if train:
            optimizers[model].zero_grad(set_to_none=True)
            y.square().mean().backward()
            optimizers[model].step()
        return y.detach().cpu().clone()

    for rows in (8, 8, 8, 4, 4, 4, 8, 4):
        x = torch.randn(rows, 20)
        expected = run(cpu, cpu, x)
        assert expected.isfinite().all().item()
        assert torch.equal(run(eager, eager, x.cuda()), expected)
        assert torch.equal(run(graphed, compiled, x.cuda()), expected)
    _equal_states(cpu, graphed)
    torch._dynamo.reset()
