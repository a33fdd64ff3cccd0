# SPDX-License-Identifier: Apache-2.0
"""Short programs with many streams, threads and copies, all edges in place.

Each is a function of a device ("cpu" or "cuda") that returns tensors; what it
computes does not depend on the device, so the numbers of the two are equal. On
the CPU everything about streams does nothing.
"""

import contextlib
import threading

import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def _numbers(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator)


def _is_cuda(device):
    return device == "cuda"


def _stream(device):
    return torch.cuda.Stream() if _is_cuda(device) else None


def _on(stream):
    return torch.cuda.stream(stream) if stream else contextlib.nullcontext()


def _wait(later, earlier):
    """`later` (None: the current stream) waits for `earlier`."""
    if later is None and earlier is None:
        return
    (later or torch.cuda.current_stream()).wait_stream(
        earlier or torch.cuda.current_stream())


def _pinned(device, *sizes):
    return torch.empty(*sizes, pin_memory=_is_cuda(device))


def _pin(device, tensor):
    return tensor.pin_memory() if _is_cuda(device) else tensor


class _Block(nn.Module):

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(-2, -1) * 0.2, dim=-1)
        return x + functional.gelu(self.out(scores @ v))


def _transformer(device, width=24, depth=2):
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(50, width),
                         *(_Block(width) for _ in range(depth)),
                         nn.Linear(width, 50)).to(device)


def _tokens(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 50, (4, 12), generator=generator)


def _loss(model, tokens):
    logits = model(tokens)
    return functional.cross_entropy(logits[:, :-1].reshape(-1, 50),
                                    tokens[:, 1:].reshape(-1))


@scenario
def transformer_steps(device):
    model = _transformer(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = _loss(model, _tokens(step).to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses + [p.detach().cpu() for p in model.parameters()]


@scenario
def three_optimizers(device):
    results = []
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(),
                              nn.Linear(16, 4)).to(device)
        optimizer = make(model.parameters())
        x = _numbers(1, 8, 16).to(device)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()
        results += [p.detach().cpu() for p in model.parameters()]
    return results


@scenario
def side_streams(device):
    """A diamond: two side streams between two operators of the main one."""
    left, right = _stream(device), _stream(device)
    x = _numbers(2, 64, 64).to(device)
    results = []
    for _ in range(4):
        x = torch.tanh(x)
        for stream in (left, right):
            _wait(stream, None)
        with _on(left):
            a = x @ x
            a = a.relu_()
        with _on(right):
            b = x.t() + 1
            b = b @ b
        _wait(None, left)
        _wait(None, right)
        y = (a + b) / 64
        if _is_cuda(device):
            a.record_stream(torch.cuda.current_stream())
            b.record_stream(torch.cuda.current_stream())
            x.record_stream(left)
            x.record_stream(right)
        x = y
        results.append(x.sum())
    return [x.cpu()] + [r.cpu() for r in results]


@scenario
def record_stream(device):
    """Blocks of the main stream, used on a side stream, freed at once."""
    side = _stream(device)
    total = torch.zeros(512, 16, device=device)
    _wait(side, None)
    for step in range(12):
        block = torch.full((512, 16), float(step), device=device)
        _wait(side, None)
        with _on(side):
            total.add_(block, alpha=0.5)
        if side:
            block.record_stream(side)
        del block
        torch.ones(512, 16, device=device).mul_(3)  # wants the block
    _wait(None, side)
    return [total.cpu()]


@scenario
def pinned_copies(device):
    """Up, computed, down: each into and out of pinned memory."""
    up, down = _stream(device), _stream(device)
    outs = []
    for step in range(4):
        source = _pin(device, _numbers(step, 200, 50))
        with _on(up):
            x = source.to(device, non_blocking=True)
        _wait(None, up)
        y = x * 2 + step
        if up:
            x.record_stream(torch.cuda.current_stream())
        _wait(down, None)
        out = _pinned(device, 200, 50)
        with _on(down):
            out.copy_(y, non_blocking=True)
        if down:
            y.record_stream(down)
            done = torch.cuda.Event()
            done.record(down)
            if step % 2:
                done.synchronize()
            else:
                while not done.query():
                    pass
        outs.append(out.clone())
    return outs


@scenario
def prefetcher(device):
    """The next batch comes up while this one is computed."""
    model = nn.Linear(32, 8)
    with torch.no_grad():
        for p, seed in zip(model.parameters(), (7, 8)):
            p.copy_(_numbers(seed, *p.shape))
    model = model.to(device)
    copies = _stream(device)
    batches = [_pin(device, _numbers(20 + i, 16, 32)) for i in range(6)]

    def fetch(index):
        with _on(copies):
            return batches[index].to(device, non_blocking=True)

    results = []
    coming = fetch(0)
    for index in range(len(batches)):
        _wait(None, copies)
        batch = coming
        if copies:
            batch.record_stream(torch.cuda.current_stream())
        if index + 1 < len(batches):
            coming = fetch(index + 1)
        results.append(model(batch).square().mean(0).detach())
    return [torch.stack(results).cpu()]


@scenario
def empty_cache_between_streams(device):
    side = _stream(device)
    x = _numbers(4, 300, 300).to(device)
    results = []
    for step in range(4):
        _wait(side, None)
        with _on(side):
            y = x + step
            z = y.sin()
            del y
        if side:
            x.record_stream(side)
            torch.cuda.empty_cache()
        _wait(None, side)
        results.append(z.sum(0))
        if side:
            z.record_stream(torch.cuda.current_stream())
        del z
        if side:
            torch.cuda.empty_cache()
    return [r.cpu() for r in results]


@scenario
def threads(device):
    """Each on a stream of its own; the results are handed over by events."""
    x = _numbers(6, 40, 40).to(device)
    ready = None
    if _is_cuda(device):
        ready = torch.cuda.Event()
        ready.record()
    results = [None] * 3
    failures = []

    def work(index):
        try:
            torch.set_num_threads(1)
            stream = _stream(device)
            with _on(stream):
                if stream:
                    stream.wait_event(ready)
                y = x
                for _ in range(5):
                    y = torch.tanh(y @ x / 10 + index)
                done = None
                if stream:
                    x.record_stream(stream)
                    done = torch.cuda.Event()
                    done.record(stream)
            results[index] = (y, done)
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    total = torch.zeros_like(x)
    for y, done in results:
        if done is not None:
            torch.cuda.current_stream().wait_event(done)
            y.record_stream(torch.cuda.current_stream())
        total = total + y
    return [total.cpu()]


@scenario
def backward_on_a_side_stream(device):
    """Autograd runs each node's backward on the stream of its forward."""
    side = _stream(device)
    weight = _numbers(9, 30, 30).to(device).requires_grad_()
    x = _numbers(10, 10, 30).to(device)
    _wait(side, None)
    with _on(side):
        hidden = torch.tanh(x @ weight)
    _wait(None, side)
    (hidden @ weight.t()).square().sum().backward()
    if side:
        hidden.record_stream(torch.cuda.current_stream())
    return [weight.grad.cpu()]


@scenario
def gradient_checkpointing(device):
    model = _transformer(device, depth=3)
    tokens = _tokens(11).to(device)
    x = model[0](tokens)
    for block in list(model)[1:-1]:
        x = checkpoint.checkpoint(block, x, use_reentrant=False)
    model[-1](x).square().mean().backward()
    return [p.grad.cpu() for p in model.parameters()]


@scenario
def mixed_precision(device):
    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(),
                          nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=64.0)
    x = _numbers(13, 8, 16).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(x)
        scaler.scale(y.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.detach().cpu() for p in model.parameters()]


@scenario
def indices(device):
    x = _numbers(14, 60, 8).to(device)
    index = torch.arange(59, -1, -1, device=device)
    y = x[index].cumsum(0)
    y[::3] = 0
    values, order = y.sort(dim=0)
    z = torch.zeros_like(x).scatter_add_(0, order, values)
    z.index_add_(0, index, x)
    mask = z > 0
    return [z.cpu(), z[mask].cpu(), mask.nonzero().cpu(),
            functional.embedding_bag(index.view(6, 10) % 7, x[:7]).cpu()]


@scenario
def convolutions(device):
    torch.manual_seed(15)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8),
                          nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(8 * 16, 5)).to(device)
    x = _numbers(16, 4, 3, 8, 8).to(device)
    loss = functional.cross_entropy(model(x),
                                    torch.arange(4, device=device))
    loss.backward()
    return [loss.detach().cpu()] + [p.grad.cpu() for p in model.parameters()]


@scenario
def double_buffers(device):
    """Two pinned buffers in turn; each is read after its own event."""
    down = _stream(device)
    buffers = [_pinned(device, 128, 32) for _ in range(2)]
    events = [torch.cuda.Event() if down else None for _ in range(2)]
    x = _numbers(17, 128, 32).to(device)
    read = []
    for step in range(6):
        turn = step % 2
        if step >= 2:
            if down:
                events[turn].synchronize()
            read.append(buffers[turn].clone())
        x = x * 1.5 - step
        _wait(down, None)
        with _on(down):
            buffers[turn].copy_(x, non_blocking=True)
        if down:
            x.record_stream(down)
            events[turn].record(down)
    if down:
        down.synchronize()
    return read + [buffer.clone() for buffer in buffers]


@scenario
def larger_than_the_device(device):
    """20 layers of 2 MiB: twice what our allocator is given, so they move."""
    torch.manual_seed(18)
    with torch.no_grad():
        layers = nn.ModuleList(nn.Linear(724, 724) for _ in range(20))
    layers = layers.to(device)
    x = _numbers(19, 2, 724).to(device)
    with torch.no_grad():
        for _ in range(2):
            y = x
            for layer in layers:
                y = torch.tanh(layer(y))
    return [y.cpu(), layers[3].weight.detach().sum().cpu()]


@scenario
def evicted_by_hand(device):
    """With our allocator everything goes and comes back; else the cache."""
    model = _transformer(device)
    results = []
    for step in range(2):
        model.zero_grad()
        loss = _loss(model, _tokens(30 + step).to(device))
        loss.backward()
        results.append(loss.detach().cpu())
        if _is_cuda(device):
            _evict()
        results += [p.grad.cpu() for p in model.parameters()]
    return results


def _evict():
    import stratalloc  # pylint: disable=import-outside-toplevel

    if stratalloc.is_enabled():
        stratalloc.evict()
    else:
        torch.cuda.empty_cache()
