# SPDX-License-Identifier: Apache-2.0
"""A rank of torchrun: trains a model of its own, and shares a sum over gloo.

    rank.py FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist

from tests.system.e2e.environments.programs import too_large

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo")
facts = too_large.of_this_process(
    rank, f"cuda:{rank % torch.cuda.device_count()}")
total = torch.tensor([rank + 1.0], device="cuda")
dist.all_reduce(total)
too_large.leave({**facts, "rank": rank, "total": total.item()}, sys.argv[1])
dist.barrier()
dist.destroy_process_group()
