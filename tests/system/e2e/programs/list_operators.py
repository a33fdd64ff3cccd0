# SPDX-License-Identifier: Apache-2.0
"""Trains with optimizers that call list operators; prints one JSON line each.

    list_operators.py --device cuda|cpu CASE...

Each case trains the same small network for a few steps. Parameters, gradients
and state are together far more than the device; a case prints a digest of
every parameter and of what the case itself computed, to be compared with the
CPU's, or the error it met. On the CPU the lists are asked for by name: there
PyTorch does not choose them by itself.
"""

import argparse
import hashlib
import json
import sys

import torch
from torch import nn
from torch.optim import swa_utils

_STEPS = 2
_WIDTH, _LAYERS = 640, 16  # 25 MiB of parameters


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.inner = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, states):
        return states + nn.functional.gelu(self.inner(self.norm(states)))


class Case:
    """One training: `optimizer(parameters)` and what happens around its step."""

    def __init__(self, optimizer, before_step=None, after_step=None,
                 scaled=False):
        self.optimizer = optimizer
        self.before_step = before_step
        self.after_step = after_step
        self.scaled = scaled

    def train(self, device):
        torch.manual_seed(0)
        model = nn.Sequential(*(_Block() for _ in range(_LAYERS)),
                              nn.Linear(_WIDTH, 2)).to(device)
        generator = torch.Generator().manual_seed(1)
        optimizer = self.optimizer(model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=1024.0,
                                      enabled=self.scaled)
        kept, extra = {}, []
        for _ in range(_STEPS):
            inputs = torch.randn(2, _WIDTH, generator=generator).to(device)
            optimizer.zero_grad(set_to_none=True)
            loss = model(inputs).square().mean()
            scaler.scale(loss).backward()
            if self.scaled:
                scaler.unscale_(optimizer)
            if self.before_step is not None:
                extra.append(self.before_step(list(model.parameters())))
            scaler.step(optimizer)
            scaler.update()
            if self.after_step is not None:
                self.after_step(model, kept)
            extra.append(loss)
        extra += [part for other in kept.values()
                  for part in other.parameters()]
        return digest([*model.parameters(), *extra])


def digest(tensors):
    """One number for the bytes of all of them."""
    sums = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            sums.update(tensor.detach().cpu().numpy().tobytes())
    return sums.hexdigest()


def _clip_norm(parameters):
    return nn.utils.clip_grad_norm_(parameters, 0.01, foreach=True)


def _clip_value(parameters):
    nn.utils.clip_grad_value_(parameters, 1e-4, foreach=True)


def _average(model, kept):
    if not kept:
        kept["average"] = swa_utils.AveragedModel(
            model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    kept["average"].update_parameters(model)


def _made(kind, **settings):
    """By list operators: what CUDA does by default."""
    if "fused" not in settings:
        settings["foreach"] = True
    return lambda parameters: getattr(torch.optim, kind)(
        parameters, **{"lr": 1e-3, **settings})


CASES = {
    "adamw": Case(_made("AdamW")),
    "adamw_fused": Case(_made("AdamW", fused=True)),
    "amsgrad": Case(_made("AdamW", amsgrad=True)),
    "amsgrad_fused": Case(_made("Adam", amsgrad=True, fused=True)),
    "sgd": Case(_made("SGD", momentum=0.9, nesterov=True)),
    "sgd_fused": Case(_made("SGD", momentum=0.9, fused=True)),
    "adafactor": Case(_made("Adafactor")),
    "nadam": Case(_made("NAdam")),
    "radam": Case(_made("RAdam")),
    "adagrad": Case(_made("Adagrad")),
    "adamax": Case(_made("Adamax")),
    "rmsprop": Case(_made("RMSprop", centered=True, momentum=0.9)),
    "ema": Case(_made("SGD"), after_step=_average),
    "clip_norm": Case(_made("SGD"), before_step=_clip_norm),
    "clip_value": Case(_made("SGD"), before_step=_clip_value),
    "scaler": Case(_made("AdamW"), scaled=True),
    "scaler_fused": Case(_made("AdamW", fused=True), _clip_norm, scaled=True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.cases or CASES:
        result = {"case": name}
        try:
            result["digest"] = CASES[name].train(args.device)
        except torch.OutOfMemoryError as error:
            result["error"] = str(error)
        print(json.dumps(result))
        print(name, result.get("error", "")[:200], file=sys.stderr)
    if args.device == "cuda":
        import stratalloc
        from stratalloc import simulate

        print(json.dumps({
            "report": stratalloc.report(), "counters": simulate.counters(),
            "violations": simulate.violations()[:5]}))


if __name__ == "__main__":
    main()
