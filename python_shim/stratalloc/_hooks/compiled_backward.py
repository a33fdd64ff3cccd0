# SPDX-License-Identifier: Apache-2.0
"""Compiled autograd runs one graph in the place of a backward's nodes.

No node says then whose forward it undoes. What the graph allocates is charged
to "(unattributed)", and each run is counted; gradients are their owners' from
the next step on. Modules that the graph calls have their own scopes, as ever,
but those that are generated code are parts of it.

The graph is found where it is handed over: `end_capture` of torch's compiler
gives the function that runs it, once for each graph. Any thread may run it.
"""

import threading

from stratalloc._hooks.patching import Replaced, passing_on

UNATTRIBUTED = "(unattributed)"


class CompiledBackward:
    """Wraps and unwraps; one per installation."""

    def __init__(self, native, owners):
        self._native = native
        self._owners = owners
        self._hooks = Replaced()
        self._active = False
        self._lock = threading.Lock()
        self.count = 0  # graphs that ran

    def reset_lock(self):
        """After fork: a thread that is gone may have held it."""
        self._lock = threading.Lock()

    def install(self):
        self._active = True
        self._hooks.when_imported(
            "torch._dynamo.compiled_autograd", self._on_import)

    def uninstall(self):
        self._active = False  # graphs that torch keeps pass on
        self._hooks.put_back()

    def _on_import(self, module):
        self._hooks.replace(module.AutogradCompilerInstance, "end_capture",
                            self._end_capture)

    def _end_capture(self, original):
        def end_capture(compiler, *args, **kwargs):
            run, graph = original(compiler, *args, **kwargs)
            return self._in_scope(run), graph
        return passing_on(original, end_capture)

    def _in_scope(self, run):
        native = self._native
        scope = self._owners.unattributed = native.intern(UNATTRIBUTED)

        def runtime_wrapper(*args, **kwargs):
            if not self._active:
                return run(*args, **kwargs)
            with self._lock:
                self.count += 1
            below = native.enter(scope)
            try:
                return run(*args, **kwargs)
            finally:
                native.leave(below)
        return passing_on(run, runtime_wrapper)
