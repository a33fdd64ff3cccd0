# SPDX-License-Identifier: Apache-2.0
"""A model of 7 billion parameters, without numbers and without its memory.

Run by hand it takes the number of layers (32) and prints the figures.
"""

import os
import resource
import sys
import time

from tests.simulator.cudasim.operator_bridge import simulated

DEVICE = simulated.load(
    memory=None, CUDASIM_CARD="h200", CUDASIM_NUMBERS="off"
)

# pylint: disable=wrong-import-position
import torch
from transformers import LlamaConfig
from transformers import LlamaForCausalLM

TOKENS = 2048


def config(layers):
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=TOKENS,
        dtype=torch.bfloat16,
    )


def make(layers):
    """On the device from the start: no copy of the weights on the host."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config(layers))
    finally:
        torch.set_default_dtype(torch.float32)


def infer(model):
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
    with torch.no_grad():
        return model(input_ids=tokens).logits


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    return loss.item()


def resident():
    """The most this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(layers):
    model = make(layers)
    parameters = sum(each.numel() for each in model.parameters())
    logits = infer(model)
    assert logits.shape == (1, TOKENS, 32000) and logits.is_cuda
    del logits
    inferred = torch.cuda.max_memory_allocated()
    loss = train(model)
    return parameters, inferred, loss


def test_a_step_of_a_large_model():
    layers = 32
    parameters, inferred, loss = run(layers)
    per_layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    assert parameters == layers * per_layer + 2 * 32000 * 4096 + 4096
    assert loss == 0
    # Weights in bf16, and while training gradients and two moments beside them.
    assert 2 * parameters < inferred < 3 * parameters
    assert torch.cuda.max_memory_allocated() > 8 * parameters
    assert DEVICE.peak_used() > 8 * parameters
    # Nothing of that is here: this is PyTorch and transformers themselves.
    assert resident() < 2 << 30
    assert DEVICE.launches_without_twin() == 0
    assert DEVICE.storages_outside() == 0
    assert DEVICE.violations() == []


def main():
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    start = time.monotonic()
    parameters, inferred, _ = run(layers)
    gib = float(1 << 30)
    print(
        f"{layers} layers, {parameters / 1e9:.2f} billion parameters, "
        f"{os.environ['CUDASIM_CARD']}\n"
        f"peak of an inference step  {inferred / gib:.2f} GiB allocated\n"
        f"peak of a training step    "
        f"{torch.cuda.max_memory_allocated() / gib:.2f} GiB allocated, "
        f"{torch.cuda.max_memory_reserved() / gib:.2f} GiB reserved\n"
        f"real memory                {resident() / gib:.2f} GiB\n"
        f"real time                  {time.monotonic() - start:.1f} s\n"
        f"virtual time               {DEVICE.virtual_seconds():.3f} s"
    )


if __name__ == "__main__":
    main()
