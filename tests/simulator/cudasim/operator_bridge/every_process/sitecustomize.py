# SPDX-License-Identifier: Apache-2.0
"""Gives every Python process the simulated device, before it imports torch.

Python imports a module of this name at its start, wherever PYTHONPATH leads.
With this folder on it and CUDASIM_EVERY_PROCESS=1 set, `import torch` loads the
device first and installs the operator bridge right behind: in a program that
is not ours to change, and in the children a program starts (spawn, forkserver,
torchrun). A process that never imports torch gets nothing. The device's
settings are those of the environment (CUDASIM_MEMORY, ...).

simulated.load(children=True) sets both variables for the children of a test.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_CUDASIM = os.path.dirname(os.path.dirname(_HERE))
_SIMULATED = "tests.simulator.cudasim.operator_bridge.simulated"


def _load(name, *place):
    """A module by its place: its package may not be on the path."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(_CUDASIM, *place))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _simulated():
    if _SIMULATED not in sys.modules:
        sys.modules[_SIMULATED] = _load(
            _SIMULATED, "operator_bridge", "simulated.py")
    return sys.modules[_SIMULATED]


_around = _load("around_torch",
                "package", "stratalloc_cudasim", "around_torch.py")
if os.environ.get("CUDASIM_EVERY_PROCESS") == "1":
    _around.around_torch(lambda: _simulated().load_device(),
                         lambda _: _simulated().install_bridge())
_around.pass_turn(_HERE)
