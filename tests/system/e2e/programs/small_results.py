# SPDX-License-Identifier: Apache-2.0
"""Many small results of a model that does not fit; prints one JSON line each.

    small_results.py --device cuda|cpu CASE...

Each case keeps what is a few bytes per pass or per parameter while memory
leaves and returns, and ends with one operator over all of it. The line has a
digest of that, to be compared with the CPU's.
"""

import argparse
import hashlib
import json
import sys
import threading

import torch
from torch import nn

_WIDTH = 512  # a weight is 1 MiB
_PASSES = 60


def _model(layers, width, device):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width)
                           for _ in range(layers))).to(device)


def _passes(model, device, after):
    """The losses of many passes, each kept; `after` each."""
    losses = []
    width = model[0].in_features
    with torch.no_grad():
        for i in range(_PASSES):
            inputs = torch.full((2, width), i / 8, device=device)
            losses.append(model(inputs).square().mean())
            after()
    return losses


def losses(device, _):
    """40 MiB of weights on a device of 24."""
    return torch.stack(_passes(_model(40, _WIDTH, device), device,
                               lambda: None))


def evicted_losses(device, evict):
    """All fits; the program evicts after every pass."""
    return torch.stack(_passes(_model(3, _WIDTH, device), device, evict))


def norms(device, evict):
    """A norm of each weight, and everything evicted after each."""
    model = _model(40, _WIDTH, device)
    found = []
    for weight in model.parameters():
        found.append(weight.detach().norm())
        evict()
    return torch.stack(found)


def clipping(device, evict):
    """clip_grad_norm_ stacks the norms while another thread evicts."""
    model = _model(40, _WIDTH, device)
    done = threading.Event()

    def others():
        while not done.is_set():
            evict()

    thread = threading.Thread(target=others)
    thread.start()
    found = []
    try:
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(2, _WIDTH, device=device)).sum().backward()
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0,
                                                  foreach=True))
    finally:
        done.set()
        thread.join()
    return torch.stack(found)


def joined(device, _):
    """Operands of `cat` that do not fit together, though the result does."""
    rows = [torch.full((512, _WIDTH), float(i), device=device)
            for i in range(40)]
    return torch.cat([row[i:i + 1] for i, row in enumerate(rows)])


_CASES = {case.__name__: case for case in (losses, evicted_losses, norms,
                                           clipping, joined)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("cases", nargs="+", choices=_CASES)
    arguments = parser.parse_args()
    on_device = arguments.device == "cuda"
    torch.set_num_threads(1)
    if on_device:
        import stratalloc  # pylint: disable=import-outside-toplevel
    for name in arguments.cases:
        line = {"case": name}
        try:
            evict = stratalloc.evict if on_device else lambda: None
            result = _CASES[name](arguments.device, evict).detach().cpu()
            line["result"] = hashlib.sha256(result.numpy()).hexdigest()
        except Exception as error:  # pylint: disable=broad-exception-caught
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
    if on_device:
        from stratalloc import simulate  # pylint: disable=C0415
        print(json.dumps({"violations": simulate.violations()}))


if __name__ == "__main__":
    sys.exit(main())
