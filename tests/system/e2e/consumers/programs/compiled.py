# SPDX-License-Identifier: Apache-2.0
"""torch.compile with CUDA graphs behind it."""

import contextlib
import copy

import torch
from consumer import counts
from consumer import digest
from consumer import driver
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config


def _model(device="cuda"):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(device)


def _train(model, call, batch_sizes):
    """Steps of training; compiled: eager, recorded, replayed."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses, allocations = [], []
    for step, rows in enumerate(batch_sizes):
        torch.manual_seed(step)
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        x = torch.randn(rows, 20).to(parameters[0].device)
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        allocations.append(counts()["allocation.all.current"])
        del loss
    return [losses, *map(digest, parameters)], allocations


def _as_elsewhere(model, compiled, batch_sizes):
    """The compiled model's results, those of eager and of the CPU."""
    seen = {}
    seen["compiled"], seen["allocations"] = _train(
        model, compiled, batch_sizes)
    for name, device in (("eager", "cuda"), ("cpu", "cpu")):
        other = _model(device)
        seen[name], _ = _train(other, other, batch_sizes)
    return seen


def cudagraphs():
    """backend="cudagraphs": forward, backward, two shapes, no gradient."""
    torch._dynamo.reset()
    model = _model()
    compiled = torch.compile(model, backend="cudagraphs", dynamic=False)
    seen = _as_elsewhere(model, compiled, (8, 8, 8, 4, 4, 4, 8, 4))
    x = torch.ones(2, 20, device="cuda")
    seen["forward"] = []
    with torch.no_grad():
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            seen["forward"].append(digest(compiled(x)))
        seen["forward on the cpu"] = digest(copy.deepcopy(model).cpu()(x.cpu()))
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
        seen = _as_elsewhere(model, compiled, (8,) * 6)
    inductor = counters["inductor"]
    seen["graphs"] = [inductor["extern_calls"] > 0, inductor["cudagraph_skips"]]
    torch._dynamo.reset()
    return seen


def branches():
    """Trees that branch: two functions in turns, and a result that lives on
    while the next graph is recorded, which restores a checkpoint."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.randn(20, 20, device="cuda")
    functions = (lambda x, w: x @ w, lambda x, w: x.t() @ x,
                 lambda x, w: (x @ w @ w).relu())
    with torch.no_grad(), config.patch(
            fallback_by_default=True, compile_threads=1):
        first, *follows = [
            torch.compile(each, mode="reduce-overhead") for each in functions]
        seen = {"compiled": [], "cpu": [], "allocations": []}
        for step in range(8):
            torch.manual_seed(step)
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(4, 20)
            kept = first(x.cuda(), weight)
            after = follows[step % 2](kept, weight)
            seen["compiled"].append([digest(after), digest(kept)])
            seen["allocations"].append(counts()["allocation.all.current"])
            kept = functions[0](x, weight.cpu())
            after = functions[1 + step % 2](kept, weight.cpu())
            seen["cpu"].append([digest(after), digest(kept)])
            del kept, after
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
