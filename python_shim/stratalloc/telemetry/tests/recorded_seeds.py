# SPDX-License-Identifier: Apache-2.0
"""Real recordings to begin a fuzzer with, one for each thing that one may have:
names, marks and backward, moves between tiers, stacks, redacted, empty, torn.

Run as a program below `stratalloc run --record` it writes them, and is killed.
"""

import functools
import os
import pathlib
import signal
import tempfile

from bazel import programs

NAMES = ("empty", "marks", "moves", "names", "redacted", "stacks", "torn")


@functools.cache
def seeds():
    """Name -> bytes."""
    with tempfile.TemporaryDirectory() as folder:
        done = programs.run(
            "-m", "stratalloc", "run", "--simulate", "48MiB", "--conf",
            "host_budget:1GiB", "--record", "torn.strata", __file__,
            cwd=folder)
        assert done.returncode == -signal.SIGKILL, done.stderr
        from stratalloc._native import core as _core

        place = pathlib.Path(folder)
        _core.recover_recording(place / "torn.strata.running",
                                place / "torn.strata", False)
        return {name: (place / f"{name}.strata").read_bytes()
                for name in NAMES}


def _work(net, torch):
    net(torch.randn(8, net[0].in_features, device="cuda")).sum().backward()
    net.zero_grad()


def _write():
    import torch

    import stratalloc

    stratalloc.telemetry_level("callsites")

    small = type("Sm\u00e4ll\n", (torch.nn.Sequential,), {})(
        *[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    with stratalloc.trace("empty.strata"):
        pass
    with stratalloc.trace("names.strata"):
        with stratalloc.scope("kv cache \U0001f600", category="buffer"):
            kept = torch.empty(5000, device="cuda")
        stratalloc.annotate(kept, "Annotated")
        with torch.cuda.stream(torch.cuda.Stream()):
            kept = torch.empty(7000, device="cuda")
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError:
            pass
    with stratalloc.trace("marks.strata"):
        for step in range(3):
            stratalloc.mark(f"step {step}")
            _work(small, torch)
    with stratalloc.trace("redacted.strata", redact=True):
        stratalloc.mark("secret")
        _work(small, torch)
    large = torch.nn.Sequential(
        *[torch.nn.Linear(1024, 1024) for _ in range(14)]).cuda()
    with stratalloc.trace("moves.strata"), torch.no_grad():
        large(torch.randn(8, 1024, device="cuda")).sum().item()
    stratalloc.telemetry_level("full")
    with stratalloc.trace("stacks.strata"):
        _work(small, torch)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _write()
