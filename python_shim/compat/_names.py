# SPDX-License-Identifier: Apache-2.0
"""The compat modules under the names that programs import them by.

`import memlord` finds stratalloc.compat.memlord once one of two has happened:
stratalloc.compat.install() was called, or the distribution stratalloc-compat
is installed, whose .pth line calls append() of a copy of this file at Python's
start. Either way one finder stands behind all others of sys.meta_path and
asks those that came behind it later: whoever else has the name keeps it. By
both names there is one module object, of submodules too; so classes are the
same, and a pickle made by one name loads by the other.

Runs at every start of Python where that distribution is installed: it imports
nothing but sys until one of the names is asked for. Any thread may call; the
import system has its own locks. Nothing here fails; importing a name that
nobody has is Python's ModuleNotFoundError.
"""

import sys

NAMES = ("gpu_optimizer", "memlord", "memory_management")
_OURS = "stratalloc.compat."


class _Finder:
    # Two copies of this file may be loaded; each knows the other's.
    stratalloc_names = True


class _Names(_Finder):
    """The names themselves, for which nobody else has a module."""

    def find_spec(self, name, path=None, target=None):
        if name not in NAMES or self._others_have(name):
            return None
        import importlib.util

        if importlib.util.find_spec("stratalloc") is None:
            return None
        return _spec(name)

    def _others_have(self, name):
        """Those before us said no, or we would not be asked."""
        behind = sys.meta_path
        if self in behind:
            behind = behind[behind.index(self) + 1:]
        return any(finder.find_spec(name, None) is not None
                   for finder in behind
                   if not hasattr(finder, "stratalloc_names")
                   and hasattr(finder, "find_spec"))


class _Submodules(_Finder):
    """What is below a name that is ours. Before all others: PathFinder would
    load the file a second time, as a module of its own."""

    def find_spec(self, name, path=None, target=None):
        top, dot, _ = name.partition(".")
        if not dot or top not in NAMES or not _is_ours(sys.modules.get(top)):
            return None
        import importlib.util

        if importlib.util.find_spec(_OURS + name) is None:
            return None
        return _spec(name)


class _Loader:
    """Gives the module that there is, and runs nothing."""

    def create_module(self, spec):
        import importlib

        module = importlib.import_module(_OURS + spec.name)
        self._spec = module.__spec__
        if not any(isinstance(finder, _Submodules)
                   for finder in sys.meta_path):
            sys.meta_path.insert(0, _Submodules())
        return module

    def exec_module(self, module):
        # The import system has put the other name's there.
        module.__spec__ = self._spec


def _spec(name):
    from importlib.machinery import ModuleSpec

    return ModuleSpec(name, _Loader(), origin=_OURS + name)


def _is_ours(module):
    return getattr(module, "__name__", "").startswith(_OURS)


def append():
    """Makes the names importable, where that has not been done."""
    if not any(hasattr(finder, "stratalloc_names")
               for finder in sys.meta_path):
        sys.meta_path.append(_Names())


def install() -> dict[str, str | None]:
    """Makes the compat modules importable as `gpu_optimizer`, `memlord` and
    `memory_management`. As often as you like; imports none of them.

    A package of that name that is installed or imported already keeps it: a
    warning of the logger "stratalloc" says where it is, and ours can be
    imported from stratalloc.compat alone.

    Returns: name -> what importing it gives, the dotted name of ours or the
    file of another's; None where importing it is forbidden (None in
    sys.modules).
    """
    append()
    return {name: _meaning(name) for name in NAMES}


def _meaning(name):
    import importlib.util

    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.find_spec(name)
        found = None if spec is None else spec.origin or next(
            iter(spec.submodule_search_locations or ()), name)
    elif _is_ours(module):
        found = module.__name__
    else:
        found = getattr(module, "__file__", None) or name
    if found not in (None, _OURS + name):
        import logging

        logging.getLogger("stratalloc").warning(
            "stratalloc: %s is the one of %s and stays it; ours is %s%s",
            name, found, _OURS, name)
    return found


def uninstall() -> None:
    """Takes the names back, those of a .pth line too, and what was imported by
    them; modules that a program holds stay as they are."""
    # A list of its own: a thread that walks the old one would pass over whoever
    # comes after us if it became shorter.
    sys.meta_path = [finder for finder in sys.meta_path
                     if not hasattr(finder, "stratalloc_names")]
    for name in list(sys.modules):
        if name.partition(".")[0] in NAMES and _is_ours(sys.modules[name]):
            del sys.modules[name]
