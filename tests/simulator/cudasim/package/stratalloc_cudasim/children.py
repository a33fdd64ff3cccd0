# SPDX-License-Identifier: Apache-2.0
"""Devices for the Python processes that a simulated run starts.

The parent leaves in the environment what its device was told; simulated_child/
is first on the children's PYTHONPATH, and its sitecustomize calls before_torch()
and after_torch() around their import of torch.
"""

import json
import os
import sys

import stratalloc
from stratalloc_cudasim import counts
from stratalloc_cudasim import device

# What the device was told, and where the two packages lie.
VARIABLE = "STRATALLOC_SIMULATED_CHILD"

_HERE = os.path.dirname(os.path.abspath(__file__))


def for_children():
    """Python processes started from here on have such devices of their own.

    Whoever starts them (multiprocessing's spawn and forkserver, subprocess,
    torchrun): Python runs simulated_child/sitecustomize.py first, and that
    calls before_torch() and after_torch() if they import torch.
    """
    state = device.current()
    card, profile = state.model
    os.environ[VARIABLE] = json.dumps({
        "memory": os.environ.get("CUDASIM_MEMORY", "card"),
        "devices": state.devices, "mode": state.mode, "seed": state.seed,
        "card": card, "profile": profile and os.path.abspath(profile),
        "numbers": None,  # inherited, as CUDASIM_NUMBERS
        "places": list(dict.fromkeys(
            [_place(stratalloc.__file__), _place(__file__)]))})
    folder = os.path.join(_HERE, "simulated_child")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([folder, *filter(None, path)]))


def _place(file):
    """What has to be on sys.path for the package of this file."""
    return os.path.dirname(os.path.dirname(os.path.abspath(file)))


def before_torch():
    """In a child: the device that for_children() of its parent described."""
    told = json.loads(os.environ[VARIABLE])
    told.pop("places", None)
    device.open_device(**told)


def after_torch(torch):
    """In a child, once torch is imported. Says at the end what was done."""
    from multiprocessing import util

    device.before_enable(torch)
    process = os.getpid()

    def say_at_the_end(_):
        # What this process forks has the same counts, and did not count them.
        if os.getpid() == process:
            util.Finalize(None, _last_line_of_child, exitpriority=0)

    # A child of a fork server ends without atexit, and begins by forgetting
    # what was to be done at its end; then it calls what is registered here.
    say_at_the_end(None)
    util.register_after_fork(_last_line_of_child, say_at_the_end)


def _last_line_of_child():
    if any(value for name, value in counts.counters().items()
           if name not in ("capacity", "peak_used")):
        # One write: processes of a job share stderr.
        sys.stderr.write(
            f"stratalloc: process {os.getpid()}, {counts.last_line()}\n")
