# SPDX-License-Identifier: Apache-2.0
"""On a card with a clock, what the host does for an eviction takes its time."""

import json

from bazel import programs

PROGRAM = """
import ctypes, tempfile
from stratalloc import simulate
simulate.load("256MiB", card="h200")
import torch, stratalloc
with tempfile.TemporaryDirectory() as folder:
    assert stratalloc.enable(host_budget=%r, disk_budget="256MiB",
                             disk_dir=folder)
    clock = simulate.driver().cudasim_virtual_now_ns
    clock.restype = ctypes.c_int64
    weights = [torch.nn.Parameter(torch.full((1 << 18,), float(i),
                                             device="cuda"))
               for i in range(64)]
    for _ in range(2):  # the first one pins memory of the host
        for weight in weights:
            weight.data.add_(0)
        began = clock()
        assert stratalloc.evict() == 64 << 20
        took = clock() - began
    assert [w[3].item() for w in weights] == list(range(64))
    assert not simulate.violations(), simulate.violations()
    print("evicted in", took)
"""


def _evicted_in(host_budget):
    done = programs.run("-c", PROGRAM % host_budget, merged=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return int(done.stdout.split("evicted in ")[1].split()[0])


# 64 MiB come over in 1.2 ms. The host would need 6.7 ms to look at them, at
# 10 GB/s.
def test_the_file_has_a_checksum_that_the_host_computes():
    assert _evicted_in(0) > 6_700_000


def test_the_host_looks_at_no_byte_that_goes_to_its_memory():
    assert _evicted_in("256MiB") < 6_700_000


CHOOSES = """
import ctypes, sys
from stratalloc import simulate
simulate.load("64MiB", profile=sys.argv[1])
import torch, stratalloc
assert stratalloc.enable(host_budget="128MiB", disk_budget=0)
weights = [torch.nn.Parameter(torch.full((1 << 20,), float(i), device="cuda"))
           for i in range(24)]
assert [w[3].item() for w in weights] == list(range(24))
clock = simulate.driver().cudasim_virtual_now_ns
clock.restype = ctypes.c_int64
print("over at", clock())
"""


def _chooses_until(tmp_path, ns_per_candidate):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({
        "card": "h200", "choose_ns_per_candidate": ns_per_candidate}))
    done = programs.run("-c", CHOOSES, profile, merged=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return int(done.stdout.split("over at ")[1].split()[0])


# 96 MiB on 64: each of several evictions looks at a dozen handles or more.
def test_choosing_victims_takes_time_per_candidate(tmp_path):
    second = 1_000_000_000
    assert _chooses_until(tmp_path, 0) < second
    assert _chooses_until(tmp_path, second / 10) > second
