# SPDX-License-Identifier: Apache-2.0
"""Trains with a framework's own loop; prints one JSON line.

    list_frameworks.py --device cuda|cpu trainer|lightning

Hugging Face's Trainer with its defaults (fused AdamW, gradients clipped by
their norm) or Lightning with gradient clipping and default AdamW. Parameters,
gradients and state are far more than the device; the line has a digest of
every parameter, to be compared with the CPU's, or the error that was met.
"""

import argparse
import json
import logging
import sys
import tempfile
import warnings

import torch
from list_operators import digest

warnings.filterwarnings("ignore")

_WIDTH, _LAYERS, _WORDS, _LENGTH, _BATCH, _STEPS = 320, 6, 500, 8, 2, 2
# The Trainer's warm-up and schedule are its own; this only makes steps count.
_RATE = 1e-3


def _tokens():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(_WORDS, (_BATCH * _STEPS, _LENGTH),
                         generator=generator)


def _language_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=_WORDS, n_positions=_LENGTH, n_embd=_WIDTH,
        n_layer=_LAYERS, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        attn_implementation="eager"))


def trainer(device):
    """Nothing but what it cannot do without, and nothing written."""
    from transformers import Trainer, TrainingArguments

    data = [{"input_ids": row, "labels": row} for row in _tokens()]
    model = _language_model()
    with tempfile.TemporaryDirectory() as folder:
        loop = Trainer(model, TrainingArguments(
            folder, use_cpu=device == "cpu", learning_rate=_RATE,
            per_device_train_batch_size=_BATCH, max_steps=_STEPS,
            save_strategy="no", report_to=[], disable_tqdm=True), None, data)
        loop.train()
        name = type(loop.optimizer.optimizer).__name__
        settings = loop.optimizer.param_groups[0]
        return model, {"optimizer": name, "fused": bool(settings["fused"]),
                       "clipped": loop.args.max_grad_norm}


def lightning(device):
    """Default AdamW; on the CPU its list operators by name."""
    from pytorch_lightning import LightningModule, Trainer

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class _Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = _language_model()

        def training_step(self, batch):
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(
                self.parameters(), lr=_RATE,
                foreach=True if device == "cpu" else None)

    module = _Module()
    loop = Trainer(
        accelerator="gpu" if device == "cuda" else "cpu", devices=1,
        max_epochs=1, gradient_clip_val=0.1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    loop.fit(module, torch.utils.data.DataLoader(_tokens(), batch_size=_BATCH))
    return module, {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("framework", choices=("trainer", "lightning"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    train = {"trainer": trainer, "lightning": lightning}[args.framework]
    result = {}
    try:
        module, result = train(args.device)
        result["bytes"] = sum(p.nbytes for p in module.parameters())
        result["digest"] = digest(module.parameters())
    except torch.OutOfMemoryError as error:
        result["error"] = str(error)
    if args.device == "cuda":
        from stratalloc import simulate

        result["counters"] = simulate.counters()
        result["violations"] = simulate.violations()[:5]
    print(json.dumps(result))
    print(result.get("error", ""), file=sys.stderr)


if __name__ == "__main__":
    main()
