# SPDX-License-Identifier: Apache-2.0
"""GPT-2 generates with a cache that grows by concatenation."""

import torch
import transformers

model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(attn_implementation="eager")).cuda().eval()
with torch.no_grad():
    for batch, prompt in ((16, 100), (8, 300)):
        tokens = torch.zeros(batch, prompt, dtype=torch.long, device="cuda")
        cache = None
        for _ in range(40):
            answer = model(input_ids=tokens, past_key_values=cache,
                           use_cache=True)
            cache = answer.past_key_values
            tokens = answer.logits[:, -1:].argmax(-1)
