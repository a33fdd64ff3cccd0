# SPDX-License-Identifier: Apache-2.0
"""Random programs under PyTorch's allocator and under ours, step by step.

Those of tests/system/differential, on this device: what a user can see must be equal.
Steps that make a driver call fail do nothing on a GPU.
"""

import os
import time

from tests.gpu_kit import answer

ASKED = "Does a random program see the same under both allocators?"
_SECONDS = 300
_SEEDS = {"cuda": 500, "sim": 20}


def run(said):
    os.environ["DIFFERENTIAL_DEVICE"] = said.device
    from tests.system.differential import program
    from tests.system.differential import run as differential

    seeds = range(1, _SEEDS[said.device] + 1)
    if not said.simulated:
        import torch

        there = torch.cuda.device_count()
        seeds = [seed for seed in seeds
                 if program.devices_of(program.make(seed)) <= there]
    began, done, found = time.monotonic(), 0, []
    for first in range(0, len(seeds), 10):
        if time.monotonic() - began > _SECONDS or found:
            break
        found = differential.run(seeds[first:first + 10])["differences"]
        done += len(seeds[first:first + 10])
        said.figure("programs compared", done, "programs")
    said.table("differences", found)
    said.promise("every program sees the same under both", not found,
                 "; ".join(f"seed {each['seed']}: {each['difference']}"
                           for each in found)[:1500])


if __name__ == "__main__":
    answer.main(run, ASKED)
