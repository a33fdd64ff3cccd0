# SPDX-License-Identifier: Apache-2.0
"""A module that is waited for: a callback at the end of its import.

    awaited = AwaitedModule("package.module", lambda module: ...)
    awaited.begin()   # now, if it is there; else whenever it has been executed
    awaited.end()

The finder only wraps what the other finders find, and what it puts around the
module's loader passes everything on but the execution: asking for the spec
(importlib.util.find_spec), the source or a resource imports nothing and loses
nothing. It stays until end(), so that an import that failed may be tried
again, and a module that is reloaded, and so made anew, is prepared anew.

Whatever the callback raises is logged: a hook must not break somebody's import.

Thread-safety: both, begin() and end() under the caller's lock. The callback
runs on the thread that imports, under the module's import lock. begin() waits
for a thread that is importing the module right now.
"""

import contextlib
import importlib._bootstrap
import importlib.abc
import logging
import sys

_log = logging.getLogger("stratalloc")


class AwaitedModule(importlib.abc.MetaPathFinder):

    def __init__(self, name, callback, around=contextlib.nullcontext):
        """`around`: a context that the module is executed in."""
        self._name = name
        self._callback = callback
        self.around = around
        self._prepared = None  # the module that callback had last

    def begin(self):
        # First, so that an import that begins from here on is seen.
        sys.meta_path.insert(0, self)
        module = sys.modules.get(self._name)
        if module is None:
            return
        if _is_being_imported(module):
            # It may have been found before we were there.
            importlib._bootstrap._lock_unlock_module(self._name)
            if sys.modules.get(self._name) is not module:
                return  # that failed
        if self._prepared is not module:
            self.prepare(module)

    def end(self):
        self._callback = self._prepared = None
        # A list of its own: a thread that walks the old one would pass over
        # whoever comes after us if it became shorter.
        sys.meta_path = [one for one in sys.meta_path if one is not self]

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        for finder in self._others():
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                break
        else:
            return None
        if self._callback is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def _others(self):
        """Those after us: whoever comes before was asked before."""
        finders = list(sys.meta_path)
        return finders[finders.index(self) + 1:] if self in finders else []

    def prepare(self, module):
        callback = self._callback
        if callback is None:
            return
        self._prepared = module
        try:
            callback(module)
        except Exception:
            _log.warning("could not prepare %s: uses of evicted memory by it "
                         "are not seen", module.__name__, exc_info=True)


class _Loader:
    """The module's own loader, and the callback after the execution.

    No importlib.abc.Loader: what that has would hide what the loader has.
    """

    def __init__(self, loader, awaited):
        self._loader = loader
        self._awaited = awaited

    @property
    def __class__(self):  # for isinstance
        return type(self._loader)

    def __getattr__(self, name):
        if name.startswith("__") or name == "_loader":  # while it is copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module):
        # Whoever looks later (inspect, pickle) sees the module as ever.
        module.__spec__.loader = module.__loader__ = self._loader
        with self._awaited.around():
            self._loader.exec_module(module)
        self._awaited.prepare(module)


def _is_being_imported(module):
    return getattr(getattr(module, "__spec__", None), "_initializing", False)
