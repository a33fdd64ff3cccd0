# SPDX-License-Identifier: Apache-2.0
"""BERT-base fine-tuned on batches of varying lengths."""

import torch
import transformers

config = transformers.BertConfig(attn_implementation="eager")
model = transformers.BertForSequenceClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for length in (128, 77, 384, 201, 512, 64):
    tokens = torch.zeros(16, length, dtype=torch.long, device="cuda")
    labels = torch.zeros(16, dtype=torch.long, device="cuda")
    mask = torch.ones(16, length, dtype=torch.long, device="cuda")
    logits = model(input_ids=tokens, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
