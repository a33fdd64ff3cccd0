# SPDX-License-Identifier: Apache-2.0
"""What the model may need on a GPU; test_memory.budget.json has it exactly."""

import pytest
import torch

from model import LanguageModel, train_step

BATCH, LENGTH, WORDS = 8, 65, 2000


@pytest.fixture(name="tokens")
def _tokens():
    return torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")


@pytest.mark.limit_gpu_memory("48 MiB")
def test_training(tokens):
    model = LanguageModel().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train_step(model, optimizer, tokens)


@pytest.mark.limit_gpu_memory("24 MiB")
def test_inference(tokens):
    model = LanguageModel().cuda().eval()
    with torch.no_grad():
        assert model(tokens).shape == (BATCH, LENGTH, WORDS)
