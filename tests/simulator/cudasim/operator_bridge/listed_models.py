# SPDX-License-Identifier: Apache-2.0
"""Items of the operator list: whole models."""

import copy

import torch
from torch import nn

from tests.simulator.cudasim.operator_bridge.listed import (
    OperatorByOperator,
    item,
    state_of,
)

# pylint: disable=import-outside-toplevel


@item("torchvision ResNet-50: train step")
def resnet50(device):
    import torchvision

    model = torchvision.models.resnet50(num_classes=10).to(device).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4
    )
    images = torch.randn(2, 3, 64, 64)
    loss = nn.functional.cross_entropy(
        model(images.to(device)), torch.tensor([3, 7]).to(device)
    )
    loss.backward()
    optimizer.step()
    return loss, state_of(model)


def gpt2_config(**changes):
    from transformers import GPT2Config

    return GPT2Config(
        **{
            "vocab_size": 97,
            "n_positions": 64,
            "n_embd": 48,
            "n_layer": 2,
            "n_head": 4,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            **changes,
        }
    )


def llama_config(**changes):
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "vocab_size": 97,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            **changes,
        }
    )


def causal_model(kind):
    """A small model with random weights, the same each time, on the CPU."""
    from transformers import GPT2LMHeadModel, LlamaForCausalLM

    torch.manual_seed(1)
    if kind == "gpt2":
        return GPT2LMHeadModel(gpt2_config()).eval()
    return LlamaForCausalLM(llama_config()).eval()


def forward_and_backward(kind, device):
    model = causal_model(kind).to(device).train()
    ids = torch.randint(3, 97, (2, 20)).to(device)
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    return output.loss, output.logits, state_of(model)


def generate(kind, device, **options):
    model = causal_model(kind).to(device)
    ids = torch.randint(3, 97, (2, 7)).to(device)
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=12,
        max_new_tokens=12,
        use_cache=True,
        **options,
    )


@item("GPT-2: forward and backward")
def gpt2(device):
    return forward_and_backward("gpt2", device)


@item("GPT-2: generate, greedy, KV cache")
def gpt2_generate(device):
    return generate("gpt2", device, do_sample=False)


@item(
    "Llama-style (GQA): forward and backward",
    1e-5,
    "CUDA has no fused attention for float32 with grouped keys: math form",
)
def llama(device):
    return forward_and_backward("llama", device)


@item("Llama-style: generate, greedy, KV cache")
def llama_generate(device):
    return generate("llama", device, do_sample=False)


def sampled_tokens(kind):
    """Tokens sampled twice with one seed, and the distributions behind them."""
    runs = []
    for _ in range(2):
        torch.manual_seed(4)
        runs.append(
            generate(
                kind,
                "cuda",
                do_sample=True,
                temperature=0.8,
                top_k=20,
                return_dict_in_generate=True,
                output_logits=True,
            )
        )
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    # The random numbers are the device's own; what the CPU can say is which
    # distribution each token was drawn from.
    tokens = runs[0].sequences.cpu()
    with torch.no_grad():
        logits = causal_model(kind)(tokens[:, :-1]).logits[:, 6:]
    drawn = torch.stack(runs[0].logits, 1).cpu()
    return float((drawn - logits).abs().max())


@item(
    "GPT-2, Llama-style: generate, sampled with a seed",
    bound=1e-5,
    why="the CPU recomputes the logits without a KV cache, in other sums",
    measures_itself=True,
)
def generate_sampled():
    return max(sampled_tokens("gpt2"), sampled_tokens("llama"))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(2)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=97,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def bert_batch(device):
    ids = torch.randint(3, 97, (4, 16), generator=torch.Generator())
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    labels = torch.tensor([0, 1, 1, 0])
    return {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "labels": labels.to(device),
    }


@item("BERT fine-tuning: float32, 3 steps of AdamW")
def bert_float(device):
    model = bert().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**bert_batch(device)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, state_of(model)


def bert_amp(dtype):
    """Fine-tunes under autocast; each operator against the CPU's."""
    model = bert().cuda().train()
    reference = copy.deepcopy(model).cpu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    checker = OperatorByOperator()
    for step in range(3):
        optimizer.zero_grad()
        with checker:
            with torch.autocast("cuda", dtype=dtype):
                loss = model(**bert_batch("cuda")).loss
            scaler.scale(loss).backward()
        if step == 0:
            expected = reference(**bert_batch("cpu")).loss
            # Half precision all the way: a few units in its last place.
            assert abs(expected.item() - loss.item()) < 0.02
        scaler.step(optimizer)
        scaler.update()
    assert checker.compared > 300
    return checker.largest


@item(
    "BERT fine-tuning: autocast fp16, GradScaler (operator by operator)",
    measures_itself=True,
)
def bert_half():
    return bert_amp(torch.float16)


@item(
    "BERT fine-tuning: autocast bf16, GradScaler (operator by operator)",
    measures_itself=True,
)
def bert_bfloat():
    return bert_amp(torch.bfloat16)


@item("GradScaler: a step with an infinite gradient is skipped")
def skipped_step(device):
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=16.0)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4, device=device)).square().sum()
        if step == 1:
            loss = loss * float("inf")
        before = model.weight.detach().clone()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        unchanged = torch.equal(before, model.weight)
        assert unchanged == (step == 1)
        scales.append(torch.tensor(scaler.get_scale()))
    return scales, list(model.parameters())
