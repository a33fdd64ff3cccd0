# SPDX-License-Identifier: Apache-2.0
"""Every item of the operator list keeps its bound, in one program."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from tests.simulator.cudasim.operator_bridge import listed

# What the list must hold, by words of its items.
NAMED = """
ResNet-50 | GPT-2: forward | GPT-2: generate, greedy | Llama-style: generate
Llama-style (GQA): forward | sampled with a seed | autocast fp16
autocast bf16 | infinite gradient is skipped | LSTM: 2 layers | GRU: 2 layers
Convolution 2d | channels last | grouped | transposed | 1d and 3d
SDPA: FLASH | SDPA: EFFICIENT | SDPA: CUDNN | SDPA: MATH | SDPA: dropout
AdamW: foreach | fused | scale and infinities | embedding bag | index_put
Sort | Scatter | FFT | Random generators | checkpointing | DataParallel
DDP | FSDP2 | Linear algebra | grid_sample | CTC | torchvision.ops
"""


@pytest.fixture(scope="module", name="lines")
def _lines():
    program = os.path.join(os.path.dirname(__file__), "operator_list.py")
    result = subprocess.run(
        [sys.executable, program, "--json"],
        env=dict(
            os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)
        ),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    lines = json.loads(result.stdout)
    assert result.returncode == sum(not line["ok"] for line in lines)
    return lines


def test_every_item_keeps_its_bound(lines):
    assert [line for line in lines if not line["ok"]] == []


def test_the_list_is_whole(lines):
    items = [line["item"] for line in lines]
    for part in NAMED.replace("\n", "|").split("|"):
        assert any(part.strip() in item for item in items), part


def test_what_differs_says_why(lines):
    for line in lines:
        assert (line["bound"] == 0) == (line["why"] == ""), line["item"]
        if line["bound"] == 0:
            assert line["difference"] == 0


def test_nothing_was_launched_and_nothing_passed_silently(lines):
    for line in lines:
        assert line["launches_without_twin"] == 0
        in_children = "two processes" in line["item"]
        assert in_children or line["operators"] > 0, line["item"]


def test_difference_of_two_nans_is_infinite():
    left = torch.tensor([1.0, math.nan])
    assert listed.difference(left, left.clone()) == math.inf
    assert listed.difference(left[:1], left[:1] + 0.5) == 0.5
