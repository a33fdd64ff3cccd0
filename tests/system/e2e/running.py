# SPDX-License-Identifier: Apache-2.0
"""How end-to-end tests start a program on the device under test.

The simulated one; with STRATALLOC_TEST_DEVICE=cuda the real GPU, of which the
allocator then takes as much as the simulated one would have.
"""

import importlib.metadata
import json
import os

from bazel import programs

_HERE = os.path.dirname(os.path.abspath(__file__))

DEVICE = os.environ.get("STRATALLOC_TEST_DEVICE", "sim")
SIMULATED = DEVICE == "sim"

# N of torch 2.N.
TORCH_MINOR = int(importlib.metadata.version("torch").split(".")[1])

# The same programs in another mode of the simulated device, under this seed.
MODE = os.environ.get("CUDASIM_MODE")
SEED = os.environ.get("CUDASIM_SEED", "0")

# The first line of a program that is started without `stratalloc run`.
LOAD = ("from stratalloc import simulate; "
        f"simulate.load('64MiB', mode={MODE or 'eager'!r}, seed={SEED})\n"
        if SIMULATED else "\n")


def environment(**more):
    values = {key: value for key, value in os.environ.items()
              if not key.startswith(("STRATALLOC", "CUDASIM_"))}
    values["STRATALLOC_TEST_DEVICE"] = DEVICE
    if not SIMULATED:
        # The libraries of a large card keep 32 MiB otherwise, which is more
        # than some of these limits.
        values["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
        values["CUBLASLT_WORKSPACE_SIZE"] = "128"
    values.update(more)
    return values


def program(name):
    return os.path.join(_HERE, "programs", name)


def python(*arguments, timeout=600, fresh=False, **more):
    """Runs this Python; returns the finished process with its texts.

    A fork of the process that has imported torch for the test, if there is one;
    `fresh` for a program that is about the start of an interpreter.
    """
    return programs.run(*map(str, arguments), env=environment(**more),
                        fresh=fresh, timeout=timeout)


def stratalloc(*arguments, timeout=600, **more):
    return python("-m", "stratalloc", *arguments, timeout=timeout, **more)


def on_device(memory, *arguments, conf="", mode="eager", options=(),
              timeout=600, **more):
    """`stratalloc run` on a device of `memory`: program arguments..."""
    if SIMULATED:
        place = ["--simulate", memory, "--mode", MODE or mode, "--seed", SEED]
    else:
        place, conf = [], f"gpu_limit:{memory},{conf}"
    return stratalloc("run", *place, "--conf", conf, *options, *arguments,
                      timeout=timeout, **more)


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
    if not SIMULATED:
        return
    assert counters["launches_without_twin"] == 0, counters
    assert counters["refused_calls"] == 0, counters
    assert counters["violations"] == 0, counters
    assert counters["storages_outside"] == 0, counters
    assert counters["bridged_ops"] > 0, counters
