# SPDX-License-Identifier: Apache-2.0
"""What operators cost without numbers: real sizes, fused attention.

The counts are those of torch.utils.flop_counter, and a transformer block of
real size takes about what its card's data sheet allows.
"""

import ctypes

from tests.simulator.cudasim.operator_bridge import simulated

sim = simulated.load(memory=None, CUDASIM_CARD="h200", CUDASIM_NUMBERS="off")

# pylint: disable=wrong-import-position
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

cuda = sim.cuda
cuda.cudasim_virtual_total.restype = ctypes.c_double
cuda.cudasim_virtual_now_ns.restype = ctypes.c_int64


def total(name):
    return cuda.cudasim_virtual_total(name.encode())


def counted(step):
    before = total("flops")
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops(), total("flops") - before


def heads(*shape):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("length", [128, 333])
def test_flash_attention(length):
    q, k, v = (heads(2, 8, length, 64) for _ in range(3))
    keys, values = heads(2, 8, 77, 64), heads(2, 8, 77, 64)

    def step():
        aten = torch.ops.aten
        out, lse, cq, ck, mq, mk, seed, offset, _ = (
            aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True))
        aten._scaled_dot_product_flash_attention_backward(
            out, q, k, v, out, lse, cq, ck, mq, mk, 0.0, True, seed, offset)
        aten._scaled_dot_product_flash_attention(q, keys, values)

    by_torch, by_device = counted(step)
    assert by_device == by_torch > 0


def test_efficient_attention():
    q, k, v = (heads(2, 8, 65, 64) for _ in range(3))

    def step():
        aten = torch.ops.aten
        out, lse, seed, offset = (
            aten._scaled_dot_product_efficient_attention(
                q, k, v, None, True))
        aten._scaled_dot_product_efficient_attention_backward(
            out, q, k, v, None, out, lse, seed, offset, 0.0,
            [True, True, True, False])

    by_torch, by_device = counted(step)
    assert by_device == by_torch > 0


def test_a_llama_block_of_7b_is_near_the_roofline():
    tokens, width, inner = 4096, 4096, 11008
    config = LlamaConfig(
        hidden_size=width, intermediate_size=inner, num_attention_heads=32,
        num_key_value_heads=32, max_position_embeddings=tokens,
        attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        block = LlamaDecoderLayer(config, 0)
        rotary = LlamaRotaryEmbedding(config)
    states = torch.empty(1, tokens, width, device="cuda")
    places = torch.arange(tokens, device="cuda")[None]

    def step():
        with torch.no_grad():
            block(states, position_embeddings=rotary(states, places))

    by_torch, by_device = counted(step)
    assert by_device == by_torch
    torch.cuda.synchronize()
    start = cuda.cudasim_virtual_now_ns()
    step()
    torch.cuda.synchronize()
    spent = cuda.cudasim_virtual_now_ns() - start
    # By hand: four square products, three of the feed-forward, attention.
    flops = 2 * tokens * width * (4 * width + 3 * inner)
    flops += 4 * tokens * tokens * width
    ideal = flops / 989.5e3  # nanoseconds at the dense peak
    assert flops == pytest.approx(by_device, rel=0.01)
    assert ideal < spent < 4 * ideal
    print(f"7B block, {tokens} tokens: {spent / 1e6:.2f} virtual ms, "
          f"{ideal / 1e6:.2f} at the peak")
