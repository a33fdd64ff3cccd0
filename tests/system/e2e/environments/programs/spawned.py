# SPDX-License-Identifier: Apache-2.0
"""Trains in two processes of torch.multiprocessing and then in this one.

    spawned.py spawn|forkserver FOLDER
"""

import sys

import torch
import torch.multiprocessing as mp

from tests.system.e2e.environments.programs import too_large


def work(rank, folder):
    too_large.leave(too_large.of_this_process(
        rank, f"cuda:{rank % torch.cuda.device_count()}"), folder)


if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[2],), nprocs=2, start_method=sys.argv[1])
    work(2, sys.argv[2])
