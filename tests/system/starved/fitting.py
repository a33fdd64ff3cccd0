# SPDX-License-Identifier: Apache-2.0
"""Jobs of real sizes for a card on which they fit.

Each entry makes a function that does one unit of work: a step, a pass, an
epoch. For a device with numbers off: weights are never read, so they are
never written either.
"""

import functools

import torch
from torch import nn


def _empty(build):
    """A model whose weights are address space on the CPU."""
    with torch.device("meta"):
        model = build()
    return model.to_empty(device="cpu")


def _bert(layers=12, hidden=768):
    from transformers import BertConfig
    from transformers import BertModel

    return _empty(lambda: BertModel(BertConfig(
        num_hidden_layers=layers, hidden_size=hidden,
        num_attention_heads=hidden // 64, intermediate_size=4 * hidden)))


def _gpt2(layers=12):
    from transformers import GPT2Config
    from transformers import GPT2LMHeadModel

    return _empty(lambda: GPT2LMHeadModel(GPT2Config(
        n_layer=layers, use_cache=False)))


def _llama(layers=8, hidden=1024):
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM

    return _empty(lambda: LlamaForCausalLM(LlamaConfig(
        hidden_size=hidden, intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers, num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64, tie_word_embeddings=False,
        use_cache=False)))


def _language_step(model, optimizer, words, clip=None):
    optimizer.zero_grad()
    model(input_ids=words, labels=words)["loss"].backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def _words(batch, length):
    return torch.zeros(batch, length, dtype=torch.long, device="cuda")


def minilm(count=60):
    """The demo: its sentences, embedded by the real model."""
    from stratalloc.demo import job

    model, tokenizer = job.load_model()
    model.cuda()
    texts = job.sentences()[:count]

    def work():
        for start in range(0, len(texts), job.BATCH):
            job.embed(torch, model, tokenizer,
                      texts[start:start + job.BATCH], "cuda")
    return work


def resnet50(batch=16):
    """An image classifier trained by SGD with momentum."""
    import torchvision

    model = _empty(torchvision.models.resnet50).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), .1, momentum=.9)

    def work():
        pictures = torch.zeros(batch, 3, 224, 224).cuda()
        classes = torch.zeros(batch, dtype=torch.long).cuda()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(pictures), classes).backward()
        optimizer.step()
    return work


def gpt2(layers=12, batch=4):
    """GPT-2 of 124 million parameters with torch's default AdamW."""
    model = _gpt2(layers).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: _language_step(model, optimizer, _words(batch, 256))


def llama(layers=8):
    """Llama-style in bfloat16, with clipping."""
    model = _llama(layers).bfloat16().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    return lambda: _language_step(model, optimizer, _words(4, 256), clip=1.)


def alternating(layers=12):
    """Two models asked in turn."""
    models = _bert(layers).cuda().eval(), _gpt2(layers).cuda().eval()

    def work():
        with torch.no_grad():
            for model in models:
                for _ in range(4):
                    model(input_ids=_words(4, 128))
    return work


def evaluation(layers=12):
    """Epochs of four steps, then an evaluation with larger batches."""
    model = _gpt2(layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def work():
        model.train()
        for _ in range(4):
            _language_step(model, optimizer, _words(2, 256))
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                words = _words(8, 256)
                model(input_ids=words, labels=words)["loss"].item()
    return work


JOBS = {
    "minilm": minilm,
    "resnet50": resnet50,
    "gpt2": gpt2,
    "llama": llama,
    "alternating": alternating,
    "evaluation": evaluation,
}

# The same with fewer operators, where only bytes count.
SMALL = {
    "minilm": functools.partial(minilm, count=20),
    "resnet50": functools.partial(resnet50, batch=4),
    "gpt2": functools.partial(gpt2, layers=3, batch=2),
    "llama": functools.partial(llama, layers=2),
    "alternating": functools.partial(alternating, layers=3),
    "evaluation": functools.partial(evaluation, layers=3),
}
