# SPDX-License-Identifier: Apache-2.0
"""torch.compile with CUDA graphs behind it."""

import contextlib

import torch
from consumer import counts
from consumer import digest
from consumer import driver
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).cuda()


def _train(model, compiled, batch_sizes=(8,) * 6):
    """Steps of training: eager, recorded, replayed."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    seen = []
    for step, rows in enumerate(batch_sizes):
        torch.manual_seed(step)
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(torch.randn(rows, 20, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        seen.append([loss.item(), counts()["allocation.all.current"]])
        del loss
    return seen + [digest(p) for p in parameters]


def cudagraphs():
    """backend="cudagraphs": forward, backward, two shapes, no gradient."""
    torch._dynamo.reset()
    model = _model()
    compiled = torch.compile(model, backend="cudagraphs", dynamic=False)
    seen = _train(model, compiled, (8, 8, 8, 4, 4, 4, 8, 4))
    with torch.no_grad():
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            seen.append(digest(compiled(torch.ones(2, 20, device="cuda"))))
    torch._dynamo.reset()
    return seen


def reduce_overhead():
    """mode="reduce-overhead": Inductor and graph trees. The operators stay
    PyTorch's, for the simulated device runs no kernel that Triton makes."""
    torch._dynamo.reset()
    counters.clear()
    model = _model()
    with config.patch(fallback_by_default=True, compile_threads=1):
        compiled = torch.compile(model, mode="reduce-overhead")
        seen = _train(model, compiled)
    inductor = counters["inductor"]
    seen.append([inductor["extern_calls"] > 0, inductor["cudagraph_skips"]])
    torch._dynamo.reset()
    return seen


def branches():
    """Trees that branch: two functions in turns, and a result that lives on
    while the next graph is recorded, which restores a checkpoint."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.randn(20, 20, device="cuda")
    with torch.no_grad(), config.patch(
            fallback_by_default=True, compile_threads=1):
        first = torch.compile(lambda x: x @ weight, mode="reduce-overhead")
        second = torch.compile(
            lambda x: (x @ weight @ weight).relu(), mode="reduce-overhead")
        third = torch.compile(lambda x: x.t() @ x, mode="reduce-overhead")
        seen = []
        for step in range(8):
            torch.manual_seed(step)
            torch.compiler.cudagraph_mark_step_begin()
            kept = first(torch.randn(4, 20, device="cuda"))
            follows = second if step % 2 else third
            seen.append([digest(follows(kept)), digest(kept),
                         counts()["allocation.all.current"]])
    torch._dynamo.reset()
    return seen


def generated_kernels():
    """mode="reduce-overhead" as it comes: Triton compiles the kernel, ptxas
    assembles it, the module loads, and the launch is refused."""
    torch._dynamo.reset()
    with config.patch(compile_threads=1):
        compiled = torch.compile(
            lambda x: (x * 2).relu() + 1, mode="reduce-overhead")
        try:
            compiled(torch.ones(1000, device="cuda"))
        except RuntimeError as error:
            text = str(error)
    # The device stays broken by it, as a card does.
    driver.cudasim_clear_errors()
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
    torch._dynamo.reset()
    return text[:80]
