# SPDX-License-Identifier: Apache-2.0
"""Gives a child of a simulated run its device, before it imports torch.

Python imports a module of this name when it starts, wherever PYTHONPATH leads;
children.for_children() puts this folder there. Until the process imports torch
nothing happens but that another sitecustomize further down the path has its
turn. Without the variable of for_children() nothing happens at all.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_TOLD = os.environ.get("STRATALLOC_SIMULATED_CHILD")


class _BeforeTorch:
    """Finds torch once, and has the device loaded around its execution."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader:
    """torch's own loader, between the device and the operator bridge."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on torch is an ordinary module again.
        module.__spec__.loader = module.__loader__ = self._loader
        if importlib.util.find_spec("stratalloc_cudasim") is None:
            # The parent's, before an allocator of another version.
            sys.path[:0] = json.loads(_TOLD)["places"]
        from stratalloc import _autoload
        from stratalloc_cudasim import children

        children.before_torch()
        self._loader.exec_module(module)
        children.after_torch(module)
        # torch does this itself where the package is installed.
        _autoload.autoload()

    def __getattr__(self, name):
        return getattr(self._loader, name)


def _next_sitecustomize():
    """This one must not hide another one further down the path."""
    rest = [place for place in sys.path
            if os.path.abspath(place or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _TOLD is not None:
    sys.meta_path.insert(0, _BeforeTorch())
_next_sitecustomize()
