# SPDX-License-Identifier: Apache-2.0
"""What a sitecustomize needs that gives its process a device.

Python imports the first module of that name on its path when it starts. It is
run before any package can be found, so it loads this file by its place; the
standard library is all that may be imported here.
"""

import importlib.machinery
import importlib.util
import os
import sys


def around_torch(before, after):
    """Calls before() and after(torch) around the first execution of torch.

    Until the process imports torch nothing happens. What before() raises is
    raised by that import.
    """
    sys.meta_path.insert(0, _Finder(before, after))


def pass_turn(folder):
    """Runs the next sitecustomize behind `folder` on the path, which the one
    in `folder` would otherwise hide. Not one before it: that had its turn."""
    places = [os.path.abspath(place or os.curdir) for place in sys.path]
    if folder not in places:
        return
    rest = sys.path[places.index(folder) + 1:]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _Finder:
    """Finds torch once, with a loader of ours around its own."""

    def __init__(self, before, after):
        self._before = before
        self._after = after

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._before, self._after)
        return spec


class _Loader:
    """torch's own loader, between what comes before and after."""

    def __init__(self, loader, before, after):
        self._loader = loader
        self._before = before
        self._after = after

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # From here on torch is an ordinary module again.
        module.__spec__.loader = module.__loader__ = self._loader
        self._before()
        self._loader.exec_module(module)
        self._after(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)
