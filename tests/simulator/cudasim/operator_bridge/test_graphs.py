# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs under PyTorch's own allocator: right numbers at every replay."""

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(memory="512MiB")

# pylint: disable=wrong-import-position
import copy

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _clean():
    yield
    torch.cuda.synchronize()
    assert DEVICE.violations() == []
    assert DEVICE.launches_without_twin() == 0


def _mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 5)
    )


def _capture(function, **arguments):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **arguments):
        result = function()
    return graph, result


def test_replays_read_their_inputs_anew():
    model = _mlp().eval()
    cuda = copy.deepcopy(model).cuda()
    x = torch.zeros(16, 20, device="cuda")
    with torch.no_grad():
        graph, y = _capture(lambda: cuda(x))
        for seed in range(3):
            value = torch.randn(
                16, 20, generator=torch.Generator().manual_seed(seed)
            )
            x.copy_(value)
            graph.replay()
            assert torch.equal(y.cpu(), model(value))


def test_in_place_work_happens_once_per_replay():
    counter = torch.zeros(4, device="cuda")
    graph, _ = _capture(lambda: counter.add_(1))
    assert counter.tolist() == [0] * 4
    for _ in range(5):
        graph.replay()
    assert counter.tolist() == [5] * 4
    counter.zero_()
    graph.replay()
    assert counter.tolist() == [1] * 4


def test_indices_computed_in_the_capture():
    """Values flow from operator to operator, though none of them runs."""
    table = torch.randn(7, 3, device="cuda")
    scores = torch.randn(5, 7, device="cuda")

    def pick():
        best = scores.argmax(1)
        return nn.functional.embedding(best, table), table[best] * 2

    graph, (picked, doubled) = _capture(pick)
    scores.copy_(torch.randn(5, 7))
    graph.replay()
    expected = table.cpu()[scores.cpu().argmax(1)]
    assert torch.equal(picked.cpu(), expected)
    assert torch.equal(doubled.cpu(), expected * 2)


def test_copies_views_and_types_in_a_capture():
    x = torch.randn(6, 4, device="cuda")
    pinned = torch.ones(6, 4).pin_memory()
    y = torch.empty(6, 4, device="cuda")
    back = torch.zeros(6, 4).pin_memory()

    def work():
        y.copy_(pinned, non_blocking=True)
        half = (x.t() @ y).to(torch.bfloat16)
        z = half.float().t().contiguous()
        back.copy_(y + x, non_blocking=True)
        return z, torch.stack([z, z.clone()])[:, 1:, ::2]

    graph, (z, s) = _capture(work)
    assert back.abs().sum() == 0
    pinned.fill_(3)
    x.copy_(torch.randn(6, 4))
    graph.replay()
    torch.cuda.synchronize()
    host = (x.cpu().t() @ pinned).bfloat16().float().t()
    assert torch.equal(z.cpu(), host)
    assert torch.equal(s.cpu(), torch.stack([host, host])[:, 1:, ::2])
    assert torch.equal(back, pinned + x.cpu())


def test_two_graphs_share_a_pool():
    x = torch.ones(1000, device="cuda")
    first, a = _capture(lambda: (x * 2).add_(1))
    second, b = _capture(lambda: (a * 3).sum(), pool=first.pool())
    assert first.pool() == second.pool()
    for value in (1.0, 5.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert b.item() == 3000 * (2 * value + 1)


def test_memory_of_a_graph_stays_in_its_pool():
    before = torch.cuda.memory_allocated()
    graph, kept = _capture(lambda: torch.ones(1 << 20, device="cuda") * 2)
    del kept
    torch.cuda.empty_cache()
    # Nothing outside gets the addresses while the graph lives.
    other = torch.zeros(1 << 20, device="cuda")
    graph.replay()
    assert other.abs().sum().item() == 0
    del graph, other
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("tensors", [1, 1000, 5000])
def test_small_tensors_take_small_segments(tensors):
    """2 MiB each, whoever allocates: this runs under native as well."""
    small, segment = 1024, 2 << 20
    x = torch.ones(small // 4, device="cuda")
    other, _ = _capture(lambda: x + 1)  # has the generator's tensors made
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, kept = _capture(lambda: [x + n for n in range(tensors)])
    taken = torch.cuda.memory_reserved() - before
    assert taken == -(-tensors * small // segment) * segment
    graph.replay()
    assert kept[-1][0].item() == tensors
    del other


def test_side_streams_fork_and_join():
    x = torch.ones(100, device="cuda")
    side = torch.cuda.Stream()

    def work():
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            a = x * 2
        b = x * 3
        current.wait_stream(side)
        return a + b

    graph, y = _capture(work)
    for value in (1, 4):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [5 * value] * 100


def test_random_numbers_are_new_at_every_replay_and_repeat_with_the_seed():
    x = torch.ones(1000, device="cuda")

    def work():
        return (
            torch.rand(1000, device="cuda"),
            nn.functional.dropout(x, 0.5),
            torch.randn_like(x),
        )

    graph, results = _capture(work)

    def replay():
        graph.replay()
        return [r.clone() for r in results]

    torch.manual_seed(11)
    first, second = replay(), replay()
    torch.manual_seed(11)
    again = replay()
    torch.manual_seed(11)
    eager = work()
    for a, b, c, e in zip(first, second, again, eager):
        assert not torch.equal(a, b)
        assert torch.equal(a, c)
        assert torch.equal(a, e)


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: torch.cuda.synchronize(),
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.ones(2).cuda(),
    ],
)
def test_what_synchronises_fails_and_the_next_capture_works(forbidden):
    x = torch.ones(10, device="cuda")
    with pytest.raises(RuntimeError, match="captur"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            y = x + 1
            forbidden(y)
    assert not torch.cuda.is_current_stream_capturing()
    graph, y = _capture(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [2] * 10


def test_unjoined_work_is_refused():
    x = torch.ones(10, device="cuda")
    side = torch.cuda.Stream()
    with pytest.raises(RuntimeError, match="unjoined"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.add_(1)
    assert x.tolist() == [1] * 10


def test_graphed_callables_train_like_eager():
    x = torch.randn(16, 20)
    target = torch.randint(0, 5, (16,))
    cpu, eager = _mlp(), _mlp().cuda()
    graphed = _mlp().cuda()
    sample = torch.randn(16, 20, device="cuda")
    state = copy.deepcopy(graphed.state_dict())
    called = torch.cuda.make_graphed_callables(graphed, (sample,))
    graphed.load_state_dict(state)  # the warm-up moved the statistics
    losses = []
    for model, call in ((cpu, cpu), (eager, eager), (graphed, called)):
        device = next(model.parameters()).device
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(
                call((x + step).to(device)), target.to(device)
            )
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:4] == losses[4:8] == losses[8:]
    for a, b in zip(cpu.state_dict().values(), graphed.state_dict().values()):
        assert torch.equal(a, b.cpu())


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=1e-2, capturable=True, foreach=False),
    ],
)
def test_a_whole_training_step(make):
    torch.manual_seed(1)
    data = torch.randn(6, 16, 20)
    targets = torch.randint(0, 5, (6, 16))
    eager, graphed = _mlp().cuda(), _mlp().cuda()

    def step(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    optimizer = make(eager.parameters())
    expected = [
        step(eager, optimizer, x.cuda(), y.cuda()).item()
        for x, y in zip(data, targets)
    ]

    optimizer = make(graphed.parameters())
    x, y = data[0].cuda(), targets[0].cuda()
    losses = []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the first steps make the state
        for i in range(2):
            x.copy_(data[i])
            y.copy_(targets[i])
            losses.append(step(graphed, optimizer, x, y).item())
    torch.cuda.current_stream().wait_stream(side)
    graph, loss = _capture(lambda: step(graphed, optimizer, x, y))
    for i in range(2, 6):
        x.copy_(data[i])
        y.copy_(targets[i])
        graph.replay()
        losses.append(loss.item())
    assert losses == expected
    for a, b in zip(eager.parameters(), graphed.parameters()):
        assert torch.equal(a, b)


def test_debug_dump_names_the_operators(tmp_path):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    x = torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        x.mul_(2)
    graph.enable_debug_mode()
    graph.instantiate()
    graph.replay()
    assert x.tolist() == [2] * 3
    del tmp_path
