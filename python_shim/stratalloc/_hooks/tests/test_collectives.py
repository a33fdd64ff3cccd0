# SPDX-License-Identifier: Apache-2.0
"""Collectives of one process bring their operands back before NCCL reads them.

Two simulated devices of 64 MiB with the real core; one process for the file.
"""

import threading

import pytest

from stratalloc import simulate

simulate.load("64MiB", devices=2, mode="async", seed=5)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.cuda import comm, nccl  # noqa: E402
from torch.nn.parallel import replicate  # noqa: E402

from python_shim.testing.enabled import enabled  # noqa: E402,F401
from python_shim.testing.evicting import evicting  # noqa: E402
from python_shim.testing.let_go import let_go  # noqa: E402
import stratalloc  # noqa: E402
from stratalloc._tiering import tiers as _tiers  # noqa: E402

MIB = 1 << 20


@pytest.fixture(autouse=True)
def clean():
    yield
    let_go(devices=2)


def numbers(size, device=0, seed=0):
    """A float tensor of `size` bytes of small whole numbers: sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, (size // 4,),
                         generator=generator).float().to(f"cuda:{device}")


def away(*tensors):
    """Evicts them and makes sure."""
    for device in range(2):
        torch.cuda.synchronize(device)
    stratalloc.evict(tensors)
    assert _tiers.residency(tensors)["device"] == 0


def on_cpu(value):
    if isinstance(value, torch.Tensor):
        return value.cpu()
    return [on_cpu(part) for part in value]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(map(same, one, other))


def in_place(function):
    """A collective that returns nothing: its operands, as it leaves them."""
    def call(*tensors):
        function(*tensors)
        return tensors
    return call


CASES = {
    "broadcast": lambda a, b, c, d: comm.broadcast(a, (0, 1)),
    "broadcast_out": in_place(lambda a, b, c, d: comm.broadcast(a, out=[c])),
    "broadcast_coalesced": lambda a, b, c, d: comm.broadcast_coalesced(
        [a, b, a[:64].half()], (0, 1), 3 * MIB),
    "reduce_add": lambda a, b, c, d: comm.reduce_add([a, c], 1),
    "reduce_add_coalesced": lambda a, b, c, d: comm.reduce_add_coalesced(
        [[a, b], [c, d]], 0),
    "scatter": lambda a, b, c, d: comm.scatter(a, (0, 1)),
    "scatter_out": in_place(lambda a, b, c, d: comm.scatter(
        torch.cat([b, a]), out=[a, c])),
    "gather": lambda a, b, c, d: comm.gather([a, d], 0, 1),
    "gather_out": in_place(lambda a, b, c, d: comm.gather(
        [b[:len(b) // 2], c[:len(c) // 2]], 0, out=d)),
    "nccl.reduce": in_place(lambda a, b, c, d: nccl.reduce([a, c], b)),
    "nccl.broadcast": in_place(lambda a, b, c, d: nccl.broadcast([a, c], 1)),
    "nccl.all_reduce": in_place(lambda a, b, c, d: nccl.all_reduce([a, c])),
    "nccl.all_gather": in_place(lambda a, b, c, d: nccl.all_gather(
        [a[:len(a) // 2], c[:len(c) // 2]], [b, d])),
    "nccl.reduce_scatter": in_place(lambda a, b, c, d: nccl.reduce_scatter(
        [a, c], [b[:len(b) // 2], d[:len(d) // 2]])),
}


@pytest.mark.parametrize("name", CASES)
def test_evicted_operands(name):
    """Two tensors on each device; twice the same, the second time from away."""
    def operands():
        return [numbers(4 * MIB, device, seed)
                for seed, device in enumerate((0, 0, 1, 1))]

    call = CASES[name]
    expected = on_cpu(call(*operands()))
    tensors = operands()
    away(*tensors)
    assert same(on_cpu(call(*tensors)), expected)


def test_on_streams_of_the_caller():
    """The operands' next eviction waits for those streams."""
    streams = [torch.cuda.Stream(device) for device in range(2)]
    a, c = numbers(4 * MIB, 0, 1), numbers(4 * MIB, 1, 2)
    expected = a.cpu() + c.cpu()
    away(a, c)
    current = torch.cuda.current_device()
    nccl.all_reduce([a, c], streams=streams)
    assert torch.cuda.current_device() == current
    assert torch.cuda.current_stream(0) != streams[0]
    stratalloc.evict((a, c))
    assert torch.equal(a.cpu(), expected) and torch.equal(c.cpu(), expected)


def test_broadcast_of_more_than_the_device():
    """Buffer by buffer; what is done with leaves for the next one."""
    tensors = [numbers(4 * MIB, 0, seed) for seed in range(24)]
    copies = comm.broadcast_coalesced(tensors, (0, 1))
    assert [t.device.index for t in copies[1]] == [1] * len(tensors)
    for mine, copied in zip(tensors, copies[1]):
        assert torch.equal(mine.cpu(), copied.cpu())
    assert all(mine is given or mine.data_ptr() == given.data_ptr()
               for mine, given in zip(tensors, copies[0]))


def test_what_does_not_fit_is_out_of_memory():
    big = [numbers(40 * MIB, 0, 1), numbers(40 * MIB, 0, 2)]
    other = numbers(40 * MIB, 1, 3)
    with pytest.raises(torch.OutOfMemoryError, match="nccl.reduce needs"):
        nccl.reduce([big[0], other], big[1])
    # Nothing is held: each can leave, and what fits works.
    away(*big, other)
    expected = big[0].cpu() + other.cpu()
    nccl.reduce([big[0], other], big[0])
    assert torch.equal(big[0].cpu(), expected)


def test_an_error_of_nccl_holds_nothing():
    a, c = numbers(4 * MIB), numbers(2 * MIB, 1)
    away(a, c)
    with pytest.raises(RuntimeError):
        nccl.all_reduce([a, c])
    away(a, c)
    with pytest.raises(TypeError):
        nccl.all_reduce([a, "c"])
    away(a)
    with pytest.raises(RuntimeError):
        comm.broadcast_coalesced([a, c], (0, 1))  # on two devices
    away(a, c)


def test_no_tensors():
    assert comm.broadcast_coalesced([], (0, 1)) in ([[], []], [])


class Replicated(nn.Module):
    """Makes replicas of a model inside its forward, as DataParallel does."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.replicas = None

    def forward(self, x):
        self.replicas = replicate(self.model, (0, 1))
        return self.replicas[1](x)


def test_replicas_and_their_gradients_may_leave():
    """They are copies of parameters, not activations of who makes them."""
    module = Replicated(nn.Sequential(*(
        nn.Linear(512, 512) for _ in range(8))).to("cuda:0"))
    x = torch.ones(2, 512, device="cuda:1")
    out = module(x)
    copies = [t for layer in module.replicas[1]
              for t in (layer.weight, layer.bias)]
    size = sum(t.numel() * 4 for t in copies)
    torch.cuda.synchronize(1)
    assert stratalloc.evict(copies) >= size
    gradients, moved = [], []

    def collect(gradient):
        gradients.append(gradient)
        if len(gradients) == len(copies) // 2:
            # Those before this one wait until all are there.
            torch.cuda.synchronize(1)
            moved.append(stratalloc.evict(gradients[:-1]))

    for tensor in copies:
        tensor.register_hook(collect)
    out.sum().backward()
    assert moved[0] > 0
    on_host = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    on_host.load_state_dict(module.model.state_dict())
    on_host(x.cpu()).sum().backward()
    for mine, expected in zip(module.model.parameters(), on_host.parameters()):
        assert torch.equal(mine.grad.cpu(), expected.grad)


def test_threads():
    """Two at once, each with operands on both devices that are away."""
    errors = []

    def work(seed):
        try:
            for step in range(6):
                a = numbers(4 * MIB, 0, seed + step)
                c = numbers(4 * MIB, 1, seed - step)
                expected = a.cpu() + c.cpu()
                stratalloc.evict((a, c))
                total = comm.reduce_add([a, c], step % 2)
                assert torch.equal(total.cpu(), expected)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 99)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_wrapped_once():
    from stratalloc._hooks import collectives as _collectives

    before = torch._C._nccl_reduce
    _collectives.install()
    assert torch._C._nccl_reduce is before
    assert before.__wrapped__.__name__ == "_nccl_reduce"


@pytest.mark.parametrize("seeds", [
    20, pytest.param(100, marks=pytest.mark.long)])
def test_data_parallel_trains_while_another_thread_evicts(seeds):
    """Forward, backward and update of both devices, equal to the CPU.

    The loss is summed over both halves, so that its gradient is one number
    expanded, which has no copy between devices of its own.
    """
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(),
                             nn.Linear(512, 256, bias=False))

    def step(model, batches):
        model.zero_grad()
        sum(model(batch).sum() for batch in batches).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(weight.grad, alpha=1e-4)

    alone = made()
    model = nn.DataParallel(made().cuda(), [0, 1])
    batch = torch.arange(8 * 256).reshape(8, 256).remainder(7).float()
    with evicting() as evictions:
        for seed in range(seeds):
            simulate.driver().cudasim_set_seed(seed)
            step(model, [batch.cuda()])
            step(alone, batch.chunk(2))
    assert evictions.bytes > seeds * MIB
    for ours, right in zip(model.module.parameters(), alone.parameters()):
        assert torch.equal(ours.cpu(), right)
