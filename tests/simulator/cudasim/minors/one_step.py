# SPDX-License-Identifier: Apache-2.0
"""One training step of the demo's model on the simulated device and the CPU.

    one_step.py

For whatever PyTorch the interpreter has: unmodified, with its own (native)
allocator and the operator bridge of its minor. Trains all-MiniLM-L6-v2 (its
real weights) to think of two sentences as a pair, with AdamW as it comes.
Prints one JSON line and exits 0 only if loss, gradients and parameters equal the
CPU's bit for bit, nothing was violated, refused or launched without a twin, and
nothing is alive on the device once PyTorch has emptied its caches.
"""

import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
os.environ.update(TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, os.path.abspath(__file__ + "/../../../../.."))

from tests.simulator.cudasim.operator_bridge import simulated

# Only asynchronous streams can show a missing edge.
DEVICE = simulated.load(memory="1GiB", mode="async", seed=7)

# pylint: disable=wrong-import-position
import copy
import gc
import json

import torch

from tests.simulator.cudasim.operator_bridge import models


def _loss(model, batch):
    """Each of the first half should resemble its partner in the second."""
    hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * weight).sum(1) / weight.sum(1)
    pooled = torch.nn.functional.normalize(pooled)
    first, second = pooled.chunk(2)
    return torch.nn.functional.cross_entropy(
        20.0 * first @ second.T, torch.arange(len(first), device=pooled.device)
    )


def _step(model, tokenizer, device):
    """Loss before and after, as floats, and the trained model."""
    model = copy.deepcopy(model).to(device)
    batch = tokenizer(models.SENTENCES[:16], padding=True, return_tensors="pt")
    batch = batch.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss = _loss(model, batch)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        after = _loss(model, batch)
    return [loss.item(), after.item()], model


def _largest_difference(on_cpu, on_device):
    """Over all parameters and their gradients."""
    largest = 0.0
    for cpu, cuda in zip(on_cpu.parameters(), on_device.parameters()):
        assert cuda.is_cuda
        pairs = [(cpu, cuda)]
        if cpu.grad is not None or cuda.grad is not None:
            pairs.append((cpu.grad, cuda.grad))
        for left, right in pairs:
            difference = (left - right.cpu()).abs().max().item()
            # Not max(): it would let a NaN pass.
            largest = difference if not difference <= largest else largest
    return largest


def _run():
    model, tokenizer = models.minilm()
    expected, on_cpu = _step(model, tokenizer, "cpu")
    losses, on_device = _step(model, tokenizer, "cuda")
    torch.cuda.synchronize()
    return {
        "loss": losses[0],
        "loss_after": losses[1],
        # Not max(): it would let a NaN pass.
        "loss_difference": sum(abs(a - b) for a, b in zip(losses, expected)),
        "largest_difference": _largest_difference(on_cpu, on_device),
        "peak_allocated": torch.cuda.max_memory_allocated(),
    }


def main():
    result = {
        "torch": torch.__version__,
        "allocator": torch.cuda.memory.get_allocator_backend(),
        **_run(),
    }
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    result.update(
        operators_bridged=DEVICE.operators,
        operators_computed=DEVICE.bridged(),
        launches_without_twin=DEVICE.launches_without_twin(),
        refused_calls=DEVICE.refused_calls(),
        violations=DEVICE.violations(),
        allocated_at_exit=torch.cuda.memory_allocated(),
        live_handles=DEVICE.cuda.cudasim_live_handles(),
    )
    wrong = [
        name
        for name, good in (
            ("allocator", result["allocator"] == "native"),
            ("loss_after", result["loss_after"] < result["loss"]),
            ("loss_difference", result["loss_difference"] == 0.0),
            ("largest_difference", result["largest_difference"] == 0.0),
            ("launches_without_twin", result["launches_without_twin"] == 0),
            ("refused_calls", result["refused_calls"] == 0),
            ("violations", not result["violations"]),
            ("allocated_at_exit", result["allocated_at_exit"] == 0),
            ("live_handles", result["live_handles"] == 0),
            ("operators_computed", result["operators_computed"] > 500),
        )
        if not good
    ]
    result["wrong"] = wrong
    print(json.dumps(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
