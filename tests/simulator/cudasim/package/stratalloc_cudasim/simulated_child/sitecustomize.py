# SPDX-License-Identifier: Apache-2.0
"""Gives a child of a simulated run its device, before it imports torch.

Python imports a module of this name when it starts, wherever PYTHONPATH leads;
children.for_children() puts this folder there. Until the process imports torch
nothing happens but that another sitecustomize further down the path has its
turn. Without the variable of for_children() nothing happens at all.
"""

import importlib.util
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_TOLD = os.environ.get("STRATALLOC_SIMULATED_CHILD")


def _load(path):
    """A module by its place: its package may not be on the path."""
    spec = importlib.util.spec_from_file_location("around_torch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _before():
    if importlib.util.find_spec("stratalloc_cudasim") is None:
        # The parent's, before an allocator of another version.
        sys.path[:0] = json.loads(_TOLD)["places"]
    from stratalloc_cudasim import children

    children.before_torch()


def _after(torch):
    from stratalloc import _autoload
    from stratalloc_cudasim import children

    children.after_torch(torch)
    # torch does this itself where the package is installed.
    _autoload.autoload()


_around = _load(os.path.join(os.path.dirname(_HERE), "around_torch.py"))
if _TOLD is not None:
    _around.around_torch(_before, _after)
_around.pass_turn(_HERE)
