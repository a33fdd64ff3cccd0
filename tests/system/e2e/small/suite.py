# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios in this process, one seed after the other.

    stratalloc run --simulate 256MiB --mode async --allocator native suite.py \
        --seeds 1-100

Each seed is another order of the scenarios and other steps of the simulated
streams. Between two seeds nothing may be left: no tensor, no violation, no more
mappings than after the first. The last line of stdout is the result as JSON.
"""

import argparse
import ctypes
import gc
import json
import os
import random
import sys
import time

import torch

from stratalloc import simulate

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scenarios  # pylint: disable=wrong-import-position


def missing_edge(device):
    """What the harness must catch: a side stream that waits for nothing."""
    x = torch.zeros(1000, device=device)
    stream = torch.cuda.Stream()
    for _ in range(3):
        x.add_(1)
        with torch.cuda.stream(stream):
            x.mul_(2)
    torch.cuda.synchronize()
    return [x.cpu()]


class Suite:
    """Expected numbers, and what was found."""

    def __init__(self, names):
        self.driver = simulate.driver()
        self.driver.cudasim_set_seed.argtypes = [ctypes.c_uint64]
        self.names = names
        self.expected = {name: scenarios.SCENARIOS[name]("cpu")
                         for name in names}
        self.mappings = None
        self.failures = []
        self.runs = 0
        self.slowest = {}

    def run_seed(self, seed, planted):
        self.driver.cudasim_set_seed(seed)
        names = list(self.names)
        random.Random(seed).shuffle(names)
        for name in names:
            began = time.perf_counter()
            self._run(name, seed)
            self.slowest[name] = max(self.slowest.get(name, 0),
                                     time.perf_counter() - began)
            self.runs += 1
        if planted:
            missing_edge("cuda")
            self._violations("missing_edge", seed)
        self._clean(seed)

    def _fail(self, name, seed, what):
        self.failures.append({"scenario": name, "seed": seed, "what": what})

    def _violations(self, name, seed):
        for text in simulate.violations():
            self._fail(name, seed, text)
        self.driver.cudasim_clear_violations()

    def _run(self, name, seed):
        try:
            found = scenarios.SCENARIOS[name]("cuda")
        except Exception as error:  # pylint: disable=broad-except
            self._fail(name, seed, f"{type(error).__name__}: {error}")
            self._violations(name, seed)
            return
        expected = self.expected[name]
        if len(found) != len(expected) or not all(
                torch.equal(mine, theirs)
                for mine, theirs in zip(found, expected)):
            self._fail(name, seed, "the numbers are not the CPU's")
        self._violations(name, seed)

    def _clean(self, seed):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._violations("between two seeds", seed)
        if torch.cuda.memory_allocated() != 0:
            self._fail("between two seeds", seed,
                       f"{torch.cuda.memory_allocated()} bytes are allocated")
        mappings = self.driver.cudasim_live_mappings()
        if self.mappings is None:
            self.mappings = mappings
        if mappings > self.mappings:
            self._fail("between two seeds", seed,
                       f"{mappings} mappings, {self.mappings} before")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="1-5", help="first-last")
    parser.add_argument("--only", help="names with commas between them")
    parser.add_argument("--planted", action="store_true",
                        help="one scenario more, which is wrong")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    names = (arguments.only.split(",") if arguments.only is not None
             else list(scenarios.SCENARIOS))
    torch.set_num_threads(1)
    suite = Suite([name for name in names if name])
    for seed in range(int(first), int(last or first) + 1):
        suite.run_seed(seed, arguments.planted)
    print(json.dumps({
        "runs": suite.runs,
        "failures": suite.failures[:50],
        "failed": len(suite.failures),
        "slowest_ms": {name: round(1000 * seconds)
                       for name, seconds in suite.slowest.items()},
        "counters": simulate.counters(),
    }))


main()
