# SPDX-License-Identifier: Apache-2.0
"""How end-to-end tests start a program on the simulated device."""

import json
import os
import subprocess
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def environment(**more):
    values = {key: value for key, value in os.environ.items()
              if not key.startswith(("STRATALLOC", "CUDASIM_"))}
    values.update(more)
    return values


def program(name):
    return os.path.join(_HERE, "programs", name)


def python(*arguments, timeout=600, **more):
    """Runs this Python; returns the finished process with its texts."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True,
        text=True, check=False, timeout=timeout, env=environment(**more))


def stratalloc(*arguments, timeout=600, **more):
    return python("-m", "stratalloc", *arguments, timeout=timeout, **more)


def on_simulated(memory, *arguments, allocator="stratalloc", conf=None,
                 mode="eager", timeout=600, **more):
    """`stratalloc run --simulate MEMORY program arguments...`."""
    options = ["--simulate", memory, "--allocator", allocator, "--mode", mode]
    if conf:
        options += ["--conf", conf]
    return stratalloc("run", *options, *arguments, timeout=timeout, **more)


def must_work(done):
    """The process ended well; its stdout."""
    assert done.returncode == 0, (
        f"exit code {done.returncode}\n{done.stdout[-4000:]}\n"
        f"{done.stderr[-6000:]}")
    return done.stdout


def last_json(done):
    """The last line of stdout, as JSON."""
    return json.loads(must_work(done).strip().splitlines()[-1])


def clean_device(counters):
    """What must hold for every run on the simulated device."""
    assert counters["launches_without_twin"] == 0, counters
    assert counters["violations"] == 0, counters
    assert counters["storages_outside"] == 0, counters
    assert counters["bridged_ops"] > 0, counters
