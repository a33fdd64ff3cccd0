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
        loss = step(torch.randn(16, 32, device="cuda"))
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


def graph():
    """A whole step of training in one graph, and a second graph in its pool."""
    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
    x = torch.zeros(16, 32, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    _warm_up(step)
    optimizer.zero_grad(set_to_none=True)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        loss = step()
    with torch.cuda.graph(second, pool=first.pool()):
        doubled = loss * 2 + model(x).sum()
    seen = [counts()]
    for seed in range(5):
        torch.manual_seed(seed)
        x.copy_(torch.randn(16, 32))
        first.replay()
        second.replay()
        seen += [loss.item(), doubled.item()]
    seen += [digest(p) for p in model.parameters()]
    # The graphs go before their results: the pool's memory is used on.
    del first, second
    other = torch.full((4, MIB), 3.0, device="cuda")
    seen += [loss.item(), doubled.item(), other.mean().item()]
    return seen


def graphed_callables():
    """make_graphed_callables: forward and backward as graphs, as in eager."""
    eager = _model()
    graphed = copy.deepcopy(eager)
    sample = torch.randn(16, 32, device="cuda", requires_grad=True)
    called = torch.cuda.make_graphed_callables(graphed, (sample,))
    seen = counts()
    first = _losses(eager, lambda x: eager(x).square().mean())
    second = _losses(graphed, lambda x: called(x).square().mean())
    return {"losses": second[0], "same": first == second, "captured": seen}


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
