# SPDX-License-Identifier: Apache-2.0
"""Weights of every power of two and its neighbours, with gradient and moment.

    stays_sizes.py DTYPE [STEP]

512 B to 512 MiB, each STEP-th power: no size is a reason to stay.
"""

import sys

import torch

import stays

dtype = getattr(torch, sys.argv[1])
step = int((sys.argv[2:] or ["1"])[0])
# The libraries' workspaces are there before anything else.
torch.nn.Linear(64, 64, device="cuda")(torch.ones(64, 64, device="cuda")
                                       ).sum().backward()

for power in range(9, 30, step):
    for size in (2**power - 512, 2**power, 2**power + 512):
        if not size:
            continue
        count = size // dtype.itemsize
        # As a row of a Linear: what comes back for it is transposed.
        weight = torch.nn.Parameter(
            torch.zeros(1, count, dtype=dtype, device="cuda"))
        with torch.no_grad():
            x = torch.ones(2, count, dtype=dtype, device="cuda")
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9,
                                    foreach=False)
        torch.nn.functional.linear(x, weight).sum().backward()
        del x
        optimizer.step()
        stays.look(str(size), weight, optimizer)
        del weight, optimizer
stays.finish()
