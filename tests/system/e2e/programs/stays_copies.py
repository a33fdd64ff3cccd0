# SPDX-License-Identifier: Apache-2.0
"""Copies of parameters that live on when the module has returned.

    stays_copies.py look|starved
"""

import copy
import hashlib
import json
import sys

import torch
from torch import nn

import stays

WIDE = 640


def layers(count):
    return nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(count)))


class Keeps(nn.Module):
    """Remembers copies of its weight that it makes when it is called."""

    def __init__(self, how):
        super().__init__()
        self.layer = nn.Linear(WIDE, WIDE)
        self.how = how
        self.kept = []

    def forward(self, x):
        self.kept.append(self.how(self.layer.weight))
        return self.layer(x)


def look():
    model = layers(4).to("cuda")
    x = torch.randn(4, WIDE, device="cuda")
    for train in (True, False):
        with torch.set_grad_enabled(train):
            with torch.autocast("cuda", torch.bfloat16):
                model(x)
                stays.look(f"autocast, gradients {train}", model)
    for name, how in (("clone", torch.clone), ("half", torch.Tensor.half),
                      ("contiguous", lambda w: w.t().contiguous()),
                      ("detached clone", lambda w: w.detach().clone())):
        keeps = Keeps(how).to("cuda")
        keeps(x)
        stays.look(name, keeps, keeps.kept)
    stays.finish()


def starved():
    """The casts alone are more than a small card. Prints a digest of results.

    The device rounds products of half precision once, the CPU their parts too.
    """
    torch.manual_seed(0)
    reference = layers(24)
    model = copy.deepcopy(reference).to("cuda")
    x = torch.randn(4, WIDE)
    with torch.autocast("cpu", torch.bfloat16):
        expected = reference(x)
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            got = model(x.to("cuda"))
    expected.float().square().mean().backward()
    got.float().square().mean().backward()
    torch.testing.assert_close(got.cpu(), expected, rtol=.05, atol=.05)
    digest = hashlib.sha256(got.detach().cpu().float().numpy().tobytes())
    for mine, theirs in zip(model.parameters(), reference.parameters()):
        assert theirs.grad.isfinite().all() and mine.grad.isfinite().all()
        digest.update(mine.grad.cpu().numpy().tobytes())
    print(json.dumps(digest.hexdigest()))


globals()[sys.argv[1]]()
