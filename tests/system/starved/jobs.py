# SPDX-License-Identifier: Apache-2.0
"""What is done with a model: the columns of the matrix.

job.run(model, batches, device) returns losses and tensors to compare. Where
torch takes another form of the same optimizer on the CPU than on CUDA (lists
or not), the CPU is told to take CUDA's: the numbers are then the same.
"""

import tempfile

import torch
from torch import nn


class Job:
    """A way to use a model, and what it keeps per byte of parameters."""

    def __init__(self, run, copies):
        self.run = run
        self.copies = copies  # parameters, gradients, optimizer state


def _to(batch, device):
    return {name: value.to(device) for name, value in batch.items()}


def _result(losses, model):
    return {
        "losses": [float(loss) for loss in losses],
        "tensors": {name: parameter.detach().cpu()
                    for name, parameter in model.named_parameters()},
    }


def _inference(model, batches, device):
    model.to(device).eval()
    tensors = {}
    with torch.no_grad():
        for index, batch in enumerate(batches):
            output = model(**_to(batch, device))
            tensors[f"logits {index}"] = output["logits"].cpu()
    return {"losses": [], "tensors": tensors}


def _adamw(model, device, **how):
    """torch's AdamW as CUDA would run it: on lists unless told otherwise."""
    if device == "cpu" and not how:
        how = {"foreach": True}
    return torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-3, **how)


def _sgd(model, device, **how):
    if device == "cpu":
        how["foreach"] = True
    return torch.optim.SGD(model.parameters(), lr=1e-2, **how)


def _train(model, batches, device, optimizer, autocast=None, clip=None,
           scaler=None, accumulate=1):
    """The loop as everybody writes it."""
    model.train()
    losses = []
    for index, batch in enumerate(batches):
        with torch.autocast(device, dtype=autocast,
                            enabled=autocast is not None):
            loss = model(**_to(batch, device))["loss"] / accumulate
        (scaler.scale(loss) if scaler else loss).backward()
        losses.append(loss.detach())
        if (index + 1) % accumulate:
            continue
        if scaler:
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip,
                                     foreach=True if device == "cpu" else None)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return _result(losses, model)


def _adamw_default(model, batches, device):
    return _train(model.to(device), batches, device, _adamw(model, device))


def _adamw_fused(model, batches, device):
    return _train(model.to(device), batches, device,
                  _adamw(model, device, fused=True))


def _adamw_single(model, batches, device):
    return _train(model.to(device), batches, device,
                  _adamw(model, device, foreach=False))


def _momentum(model, batches, device):
    return _train(model.to(device), batches, device,
                  _sgd(model, device, momentum=.9))


def _clip(model, batches, device):
    return _train(model.to(device), batches, device,
                  _sgd(model, device), clip=.5)


def _scaled(model, batches, device):
    # Not 65536, whose first steps overflow and are skipped.
    scaler = torch.amp.GradScaler(device, init_scale=128.)
    return _train(model.to(device), batches, device,
                  _sgd(model, device, momentum=.9), scaler=scaler,
                  autocast=torch.float16)


def _autocast(model, batches, device):
    return _train(model.to(device), batches, device, _adamw(model, device),
                  autocast=torch.bfloat16)


def _checkpointing(model, batches, device):
    model.gradient_checkpointing_enable()
    return _train(model.to(device), batches, device, _adamw(model, device))


def _accumulation(model, batches, device):
    return _train(model.to(device), batches + batches, device,
                  _adamw(model, device), accumulate=2)


class Adapter(nn.Module):
    """A frozen layer plus a trained product of two thin matrices."""

    def __init__(self, base, inputs, outputs, rank=4):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, inputs) * .02)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    @property
    def weight(self):
        """T5 asks the layers it calls for their type."""
        return self.base.weight

    def forward(self, value):
        return (self.base(value)
                + nn.functional.linear(
                    nn.functional.linear(value, self.down), self.up))


def adapt(model):
    """Freezes a model and puts an Adapter around every linear layer."""
    from transformers.pytorch_utils import Conv1D

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    torch.manual_seed(2)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                sizes = child.in_features, child.out_features
            elif isinstance(child, Conv1D):
                sizes = tuple(child.weight.shape)
            else:
                continue
            if not isinstance(module, Adapter):
                setattr(module, name, Adapter(child, *sizes))
    return model


def _lora(model, batches, device):
    adapt(model).to(device)
    return _train(model, batches, device, _adamw(model, device))


def _rows(batches):
    """Batches taken apart, for programs that collate themselves."""
    return [{name: value[row] for name, value in batch.items()}
            for batch in batches for row in range(len(batch["labels"]))]


def _trainer(model, batches, device):
    """The Hugging Face Trainer with its defaults: fused AdamW and clipping."""
    from transformers import Trainer
    from transformers import TrainerCallback
    from transformers import TrainingArguments

    losses = []

    class Losses(TrainerCallback):
        """Keeps what the trainer logs of each step."""

        def on_log(self, args, state, control, logs=None, **others):
            if logs and "loss" in logs:
                losses.append(logs["loss"])

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, callbacks=[Losses()],
            args=TrainingArguments(
                output_dir=folder, max_steps=len(batches),
                per_device_train_batch_size=len(batches[0]["labels"]),
                report_to=[], save_strategy="no", logging_steps=1,
                disable_tqdm=True, use_cpu=device == "cpu"),
            train_dataset=_rows(batches))
        trainer.train()
    return _result(losses, model)


def _lightning(model, batches, device):
    """Lightning's Trainer, clipping as its users do."""
    import pytorch_lightning

    class Task(pytorch_lightning.LightningModule):
        """The model with AdamW."""

        def __init__(self):
            super().__init__()
            self.model = model
            self.losses = []

        def training_step(self, batch, index):
            del index
            loss = self.model(**batch)["loss"]
            self.losses.append(loss.detach().clone())
            return loss

        def configure_optimizers(self):
            return _adamw(self.model, device)

    task = Task()
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    pytorch_lightning.Trainer(
        max_epochs=1, accelerator="cpu" if device == "cpu" else "gpu",
        devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=.5).fit(task, loader)
    return _result(task.losses, model)


def _accelerate(model, batches, device):
    """The loop of accelerate's own documentation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu")
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    # Before prepare, as everybody does: the parameters move below it.
    model, optimizer, loader = accelerator.prepare(
        model, _adamw(model, device), loader)
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), .5)
        optimizer.step()
        losses.append(loss.detach())
    return _result(losses, accelerator.unwrap_model(model))


JOBS = {
    "inference": Job(_inference, 1),
    "adamw": Job(_adamw_default, 4),
    "fused": Job(_adamw_fused, 4),
    "single": Job(_adamw_single, 4),
    "momentum": Job(_momentum, 3),
    "clip": Job(_clip, 2),
    "scaler": Job(_scaled, 3),
    "trainer": Job(_trainer, 4),
    "lightning": Job(_lightning, 4),
    "accelerate": Job(_accelerate, 4),
    "checkpointing": Job(_checkpointing, 4),
    "autocast": Job(_autocast, 4),
    "lora": Job(_lora, 1),
    "accumulation": Job(_accumulation, 4),
}
