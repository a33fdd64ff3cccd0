# SPDX-License-Identifier: Apache-2.0
"""The models of the matrix, from configurations, with weights for show.

Weights are large and activations small: what must leave a starved card are
parameters, gradients and optimizer state. Dropout is 0, since a device draws
other numbers than the CPU. Layers are as many as the wanted size takes.
"""

import torch
from torch import nn

HIDDEN = 256
HEADS = 4
WORDS = 1000
LENGTH = 8
BATCH = 2
CLASSES = 4


class Recipe:
    """How one model is made: its layers, and what it reads."""

    def __init__(self, build, batch):
        self._build = build
        self.batch = batch

    def of_size(self, size, hidden=HIDDEN):
        """The model with about `size` bytes of parameters, on the CPU."""
        with torch.device("meta"):
            one, two = (parameter_bytes(self._build(layers, hidden))
                        for layers in (1, 2))
        layers = max(2, round((size - one) / (two - one)) + 1)
        torch.manual_seed(0)
        return self._build(layers, hidden)

    def batches(self, count):
        generator = torch.Generator().manual_seed(1)
        return [self.batch(generator) for _ in range(count)]


def parameter_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _bert(layers, hidden):
    from transformers import BertConfig
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=HEADS, intermediate_size=4 * hidden,
        max_position_embeddings=64, hidden_dropout_prob=0.,
        attention_probs_dropout_prob=0., num_labels=CLASSES))


def _gpt2(layers, hidden):
    from transformers import GPT2Config
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=hidden, n_layer=layers,
        n_head=HEADS, resid_pdrop=0., embd_pdrop=0., attn_pdrop=0.,
        bos_token_id=0, eos_token_id=0, use_cache=False))


def _llama(layers, hidden):
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=64,
        tie_word_embeddings=False, use_cache=False))


def _t5(layers, hidden):
    from transformers import T5Config
    from transformers import T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(
        vocab_size=WORDS, d_model=hidden, d_kv=hidden // HEADS,
        d_ff=4 * hidden, num_layers=layers, num_heads=HEADS, dropout_rate=0.,
        decoder_start_token_id=0, use_cache=False,
        # The fused form with a mask has other sums than the CPU's.
        attn_implementation="eager"))


def _vit(layers, hidden):
    from transformers import ViTConfig
    from transformers import ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=HEADS, intermediate_size=4 * hidden,
        image_size=32, patch_size=8, num_labels=CLASSES))


def _experts(layers, hidden):
    from transformers import MixtralConfig
    from transformers import MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(
        vocab_size=WORDS, hidden_size=hidden, intermediate_size=hidden,
        num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, num_local_experts=4,
        num_experts_per_tok=2, max_position_embeddings=64,
        tie_word_embeddings=False, use_cache=False,
        # The grouped form counts with histc of integers, which the simulated
        # device does not compute.
        experts_implementation="eager"))


class _Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, hidden, bias):
        super().__init__()
        self.norm = nn.LayerNorm(hidden, bias=bias)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)
        self.feed_norm = nn.LayerNorm(hidden, bias=bias)
        self.up = nn.Linear(hidden, 4 * hidden, bias=bias)
        self.down = nn.Linear(4 * hidden, hidden, bias=bias)

    def forward(self, states):
        batch, length, hidden = states.shape
        parts = [part.view(batch, length, HEADS, -1).transpose(1, 2)
                 for part in self.qkv(self.norm(states)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        states = states + self.out(
            mixed.transpose(1, 2).reshape(batch, length, hidden))
        inner = nn.functional.gelu(self.up(self.feed_norm(states)))
        return states + self.down(inner)


class Plain(nn.Module):
    """A language model that answers as those of transformers do."""

    def __init__(self, layers, hidden=HIDDEN, words=WORDS, bias=True,
                 tied=False):
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.blocks = nn.ModuleList(
            _Block(hidden, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, bias=bias)
        self.head = nn.Linear(hidden, words, bias=False)
        # nn.Embedding draws from N(0, 1): losses of an untrained tied head
        # would be hundreds.
        nn.init.normal_(self.words.weight, std=.02)
        if tied:
            self.head.weight = self.words.weight
        self._checkpointing = False

    def gradient_checkpointing_enable(self):
        self._checkpointing = True

    def forward(self, input_ids, labels=None):
        states = self.words(input_ids)
        for block in self.blocks:
            if self._checkpointing and self.training:
                states = torch.utils.checkpoint.checkpoint(
                    block, states, use_reentrant=False)
            else:
                states = block(states)
        logits = self.head(self.norm(states))
        answer = {"logits": logits}
        if labels is not None:
            answer["loss"] = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten())
        return answer


def _bias_free(layers, hidden):
    return Plain(layers, hidden, bias=False)


def _tied(layers, hidden):
    return Plain(layers, hidden, words=4 * WORDS, tied=True)


def _words(generator):
    return torch.randint(WORDS, (BATCH, LENGTH), generator=generator)


def _next_words(generator):
    words = _words(generator)
    return {"input_ids": words, "labels": words.clone()}


def _sentence_classes(generator):
    return {"input_ids": _words(generator),
            "labels": torch.randint(CLASSES, (BATCH,), generator=generator)}


def _pictures(generator):
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32,
                                        generator=generator),
            "labels": torch.randint(CLASSES, (BATCH,), generator=generator)}


MODELS = {
    "bert": Recipe(_bert, _sentence_classes),
    "gpt2": Recipe(_gpt2, _next_words),
    "llama": Recipe(_llama, _next_words),
    "t5": Recipe(_t5, _next_words),
    "vit": Recipe(_vit, _pictures),
    "experts": Recipe(_experts, _next_words),
    "biasfree": Recipe(_bias_free, _next_words),
    "tied": Recipe(_tied, _next_words),
}
