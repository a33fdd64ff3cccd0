# SPDX-License-Identifier: Apache-2.0
"""Lightning's DeviceStatsMonitor, which logs every number of memory_stats()."""

import logging
import warnings

import torch
from consumer import counts
from pytorch_lightning import LightningModule
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import DeviceStatsMonitor
from pytorch_lightning.loggers.logger import Logger
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class _Kept(Logger):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.seen = []

    name = version = "kept"

    def log_metrics(self, metrics, step=None):
        self.seen.append([step, metrics])

    def log_hyperparams(self, *_, **__):
        pass


class _Module(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        self.losses = []

    def training_step(self, batch):
        loss = self.layers(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def _fit(accelerator, callbacks, logger):
    """The losses of five steps."""
    module = _Module()
    torch.manual_seed(1)
    data = torch.utils.data.DataLoader(torch.randn(40, 32), batch_size=8)
    trainer = Trainer(
        accelerator=accelerator, devices=1, max_epochs=1, log_every_n_steps=1,
        callbacks=callbacks, logger=logger,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False)
    trainer.fit(module, data)
    return module.losses


def device_stats():
    """Five steps of training with the callback, and on the CPU without."""
    kept = _Kept()
    losses = _fit("gpu", [DeviceStatsMonitor()], kept)
    logged = []
    for step, metrics in kept.seen:
        if not any(key.startswith("DeviceStatsMonitor") for key in metrics):
            continue
        plain = {key.rpartition("/")[2]: value
                 for key, value in metrics.items()}
        (when,) = {key.rpartition("/")[0] for key in metrics}
        logged.append([step, when, len(plain), counts(plain)])
    return {"logged": logged, "losses": losses,
            "on the cpu": _fit("cpu", [], False)}
