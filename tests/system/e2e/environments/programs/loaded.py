# SPDX-License-Identifier: Apache-2.0
"""Trains on batches that workers of a DataLoader make and a thread pins.

    loaded.py fork|spawn|forkserver
"""

import json
import sys

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset
from torch.utils.data import get_worker_info

from tests.system.e2e.environments.programs import too_large


class Batches(Dataset):
    def __init__(self):
        self._values = too_large.batches(0)

    def __len__(self):
        return len(self._values)

    def __getitem__(self, index):
        """A batch, and whether its maker is a worker that left CUDA alone."""
        return self._values[index], torch.tensor(
            get_worker_info() is not None and not torch.cuda.is_initialized())


def read(loader):
    for values, apart in loader:
        assert values.is_pinned() and bool(apart)
        yield values


def main():
    torch.set_num_threads(1)
    layers = too_large.model(0).to("cuda")  # what a forked worker inherits
    loader = DataLoader(Batches(), batch_size=None, num_workers=2,
                        pin_memory=True, persistent_workers=True,
                        multiprocessing_context=sys.argv[1])
    ours = too_large.trained(layers, read(loader), "cuda")
    theirs = too_large.trained(too_large.model(0), too_large.batches(0), "cpu")
    print(json.dumps({"same": too_large.same(ours, theirs),
                      **too_large.facts()}))


if __name__ == "__main__":
    main()
