# SPDX-License-Identifier: Apache-2.0
"""Forward passes of models with Llama's shapes, on cards smaller than they are.

Each job has a process of its own, and beside it one under PyTorch's allocator
on a card with room, which says how long a pass computes and what it allocates.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: every layer of the model is there, in bfloat16; the bound of a pass
does not depend on the allocator under test.
"""

import dataclasses
import importlib.util
from typing import Any

from tests.system.speed import inference
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import zygote

_WORDS = 32000


@dataclasses.dataclass(frozen=True)
class Llama:
    """A jobs.Stack of another build: transformers' LlamaForCausalLM.

    width: of the hidden state. middle: of the feed-forward part. heads, keys:
    attention heads, and those of keys and values. tokens: of one batch of 1.
    """

    width: int
    middle: int
    layers: int
    heads: int
    keys: int
    tokens: int

    @property
    def layer_bytes(self) -> int:
        """Of one block: attention, feed-forward part, two norms; bfloat16."""
        narrow = self.width * self.keys // self.heads
        return 2 * (2 * self.width * (self.width + narrow)
                    + 3 * self.width * self.middle + 2 * self.width)

    @property
    def bytes(self) -> int:
        """Of all parameters: blocks, the tables of words, the last norm."""
        return self.layers * self.layer_bytes + 2 * (
            2 * _WORDS * self.width + self.width)

    def build(self, device: str = "cuda") -> Any:
        """The model, whose weights have no values."""
        import torch
        from transformers import LlamaConfig
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(
                vocab_size=_WORDS, hidden_size=self.width,
                intermediate_size=self.middle, num_hidden_layers=self.layers,
                num_attention_heads=self.heads, num_key_value_heads=self.keys,
                tie_word_embeddings=False, use_cache=False))
        return model.bfloat16().to_empty(device=device).eval()

    def input(self) -> Any:
        """Word numbers, 1 x tokens, of which any may be 0."""
        import torch

        return torch.zeros(1, self.tokens, dtype=torch.long, device="cuda")


SHAPES = {
    "7B": Llama(4096, 11008, 32, 32, 32, 0),
    "70B": Llama(8192, 28672, 80, 64, 8, 0),
    "small": Llama(1024, 2752, 8, 8, 8, 0),  # for a card of 128 MiB
}


def measure(plan: Any, name: str, card: int, tokens: int) -> list[dict]:
    """The rows of one of SHAPES on a card of so many bytes."""
    if not importlib.util.find_spec("transformers"):
        print(f"left out: llama {name}: transformers is not installed",
              flush=True)
        return []
    plan = dataclasses.replace(plan, card=card)
    model = dataclasses.replace(SHAPES[name], tokens=tokens)
    room = inference.native(model, waiting=0)
    budget = plan.budget(room["peak"])
    ours = zygote.run(
        jobs.inference, model, jobs.Where(card, host_budget=budget),
        plan.warm_up, plan.measured, timeout=plan.timeout)
    capacity = card - (room["peak"] - model.bytes)
    bound = sizing.bound(model.bytes, capacity,
                         room["passes"][-1]["busy_ns"], ours["bus"], False)
    job = rows.Job(
        "llama", f"{name} on {sizing.shown(card)}, {tokens} tokens",
        **plan.about(), capacity=capacity, model_bytes=model.bytes,
        host_budget=budget, handle_bytes=ours["handle"], tokens=tokens,
        faults=ours["faults"])
    inference.add_passes(job, ours, bound, plan.warm_up)
    return job.rows
