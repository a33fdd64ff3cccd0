# SPDX-License-Identifier: Apache-2.0
"""Runs a module as a process that has not imported torch or stratalloc yet.

    programs.run(*parked.command("pytest", ...))

A program in a fork (bazel/programs.py) has imported both. Here they leave
sys.modules, and the next `import torch` brings back what was there and calls
the entry points of torch.backends, as the first import does.
"""

import importlib.machinery
import importlib.metadata
import runpy
import sys

_OURS = ("stratalloc", "stratalloc_cudasim")

# Options of pytest: each run would rewrite the assertions of the other plug-ins
# installed here.
OUR_PLUGIN_ALONE = tuple(
    word for point in importlib.metadata.entry_points(group="pytest11")
    if point.name != "stratalloc" for word in ("-p", f"no:{point.name}"))


def command(module, *arguments):
    """The arguments of an interpreter that runs `module` in this way."""
    return ("-c", "from python_shim.testing import parked; parked.run()",
            module, *map(str, arguments))


def run():
    """sys.argv names the module, and has its arguments."""
    hide()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def hide():
    """Ours are imported afresh; torch cannot be, in one process."""
    for name in [each for each in sys.modules if _root(each) in _OURS]:
        del sys.modules[name]
    parked = {name: module for name, module in sys.modules.items()
              if _root(name) == "torch"}
    for name in parked:
        del sys.modules[name]
    if parked:
        sys.meta_path.insert(0, _Parked(parked))


def _root(name):
    return name.partition(".")[0]


class _Parked:
    """Brings torch back, as a whole, at its next import."""

    def __init__(self, modules):
        self._modules = modules
        self._spec = None

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "torch" or not self._modules:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        module = self._modules.pop(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec  # the import has put its own there
        sys.modules.update(self._modules)
        self._modules.clear()
        if module._is_device_backend_autoload_enabled():
            module._import_device_backends()
