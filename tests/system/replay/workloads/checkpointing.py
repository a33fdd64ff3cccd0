# SPDX-License-Identifier: Apache-2.0
"""GPT-2 medium trained with gradient checkpointing."""

import torch
import transformers

config = transformers.GPT2Config(
    n_embd=1024, n_layer=24, n_head=16, attn_implementation="eager")
model = transformers.GPT2LMHeadModel(config).cuda().train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for length in (512, 768, 640):
    tokens = torch.zeros(8, length, dtype=torch.long, device="cuda")
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.view(-1, config.vocab_size), tokens.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
