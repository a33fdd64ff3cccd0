# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs and pools of memory, as PyTorch's documentation shows them."""

import copy

import torch
from consumer import counts
from consumer import digest
from torch import nn

MIB = 1 << 20


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()


def _losses(model, step):
    """Ten steps of training; `step` computes the loss of a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for seed in range(10):
        torch.manual_seed(seed)
        optimizer.zero_grad(set_to_none=True)
        x = torch.randn(16, 32)
        loss = step(x.to(next(model.parameters()).device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [digest(p) for p in model.parameters()]


def _warm_up(work):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)


def _parts(device):
    """A step of training on `x`, and a function of its loss and the model."""
    model = _model().to(device)
    # On the CPU there is no capture that its steps could be kept for.
    optimizer = torch.optim.Adam(
        model.parameters(), lr=0.01, capturable=device == "cuda")
    x = torch.zeros(16, 32, device=device)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def after(loss):
        return loss * 2 + model(x).sum()

    return model, optimizer, x, step, after


def _replayed(x, run):
    """Five steps; `run` returns the two results of one."""
    seen = []
    for seed in range(5):
        torch.manual_seed(seed)
        x.copy_(torch.randn(16, 32))
        seen.append([each.item() for each in run()])
    return seen


def _eagerly(device):
    model, _, x, step, after = _parts(device)
    for _ in range(3):
        step()

    def run():
        loss = step()
        return loss, after(loss)

    return {"results": _replayed(x, run),
            "parameters": [digest(p) for p in model.parameters()]}


def graph():
    """A whole step of training in one graph, and a second graph in its pool."""
    model, optimizer, x, step, after = _parts("cuda")
    _warm_up(step)
    optimizer.zero_grad(set_to_none=True)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        loss = step()
    with torch.cuda.graph(second, pool=first.pool()):
        doubled = after(loss)
    captured = counts()

    def run():
        first.replay()
        second.replay()
        return loss, doubled

    results = _replayed(x, run)
    seen = {
        "results": results, "counts": captured,
        "parameters": [digest(p) for p in model.parameters()]}
    # The graphs go before their results: the pool's memory is used on.
    del first, second, run
    other = torch.full((4, MIB), 3.0, device="cuda")
    seen["afterwards"] = [loss.item(), doubled.item()]
    seen["beside"] = other.mean().item()
    return {"graph": seen, "eager": _eagerly("cuda"), "cpu": _eagerly("cpu")}


def graphed_callables():
    """make_graphed_callables: forward and backward as graphs, as in eager."""
    eager = _model()
    graphed, on_cpu = copy.deepcopy(eager), copy.deepcopy(eager).cpu()
    sample = torch.randn(16, 32, device="cuda", requires_grad=True)
    called = torch.cuda.make_graphed_callables(graphed, (sample,))
    seen = {"captured": counts()}
    for name, model, call in (("eager", eager, eager), ("cpu", on_cpu, on_cpu),
                              ("graphed", graphed, called)):
        seen[name] = _losses(model, lambda x, f=call: f(x).square().mean())
    return seen


def mem_pool():
    """MemPool: what is made in it, what it gives back, what lives on."""
    pool = torch.cuda.MemPool()
    seen = []
    with torch.cuda.use_mem_pool(pool):
        kept = torch.arange(MIB, device="cuda", dtype=torch.float32)
        gone = torch.ones(3 * MIB, device="cuda")
        address = gone.data_ptr()
        del gone
        again = torch.full((3 * MIB,), 2.0, device="cuda")
        seen.append(again.data_ptr() == address)
    outside = torch.ones(MIB, device="cuda")
    inside = [
        block["requested_size"]
        for segment in pool.snapshot() for block in segment["blocks"]
        if block["state"] == "active_allocated"]
    seen += [sorted(inside), pool.use_count(), counts()]
    del again
    with torch.cuda.use_mem_pool(pool):
        third = kept * 2
        seen.append(sum(s["allocated_size"] for s in pool.snapshot()))
    del pool
    torch.cuda.empty_cache()
    seen += [digest(kept), digest(third), outside.sum().item()]
    return seen
