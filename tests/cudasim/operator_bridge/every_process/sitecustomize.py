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

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class _BeforeTorch:
    """Finds torch once, and loads the device around its execution."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """torch's own loader, between the device and the bridge."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # Its package, tests.cudasim.operator_bridge, may not be on the path.
        known = sys.modules.get("tests.cudasim.operator_bridge.simulated")
        if known is None:
            spec = importlib.util.spec_from_file_location(
                "tests.cudasim.operator_bridge.simulated",
                os.path.join(os.path.dirname(_HERE), "simulated.py"),
            )
            known = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = known
            spec.loader.exec_module(known)
        known.load_device()
        # From here on torch is an ordinary module again.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        known.install_bridge()

    def __getattr__(self, name):
        return getattr(self._loader, name)


def _next_sitecustomize():
    """This one must not hide another one further down the path."""
    rest = [
        place
        for place in sys.path
        if os.path.abspath(place or os.curdir) != _HERE
    ]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("CUDASIM_EVERY_PROCESS") == "1":
    sys.meta_path.insert(0, _BeforeTorch())
_next_sitecustomize()
