# SPDX-License-Identifier: Apache-2.0
"""On a card with a clock, what the host does for an eviction takes its time."""

import os
import subprocess
import sys

PROGRAM = """
import ctypes, tempfile
from stratalloc import simulate
simulate.load("256MiB", card="h200")
import torch, stratalloc
with tempfile.TemporaryDirectory() as folder:
    assert stratalloc.enable(host_budget=0, disk_budget="256MiB",
                             disk_dir=folder)
    clock = simulate.driver().cudasim_virtual_now_ns
    clock.restype = ctypes.c_int64
    weights = [torch.nn.Parameter(torch.full((1 << 18,), float(i),
                                             device="cuda"))
               for i in range(64)]
    began = clock()
    assert stratalloc.evict() == 64 << 20
    took = clock() - began
    assert [w[3].item() for w in weights] == list(range(64))
    assert not simulate.violations(), simulate.violations()
    print("evicted in", took)
"""


def test_checksums_of_what_goes_to_the_disk():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=dict(os.environ),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    took = int(done.stdout.split("evicted in ")[1].split()[0])
    # 64 MiB come over in 1.2 ms, and 64 unmaps of 34 us cost 2.2. The device's
    # checksum is looked at on the host, and the file has one of its own: at
    # 10 GB/s these are 6.7 ms each.
    assert took > 13_400_000, took
