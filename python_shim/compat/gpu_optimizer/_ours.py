# SPDX-License-Identifier: Apache-2.0
"""Ours: a traced model under our allocator, which records it all by itself.

Nothing is hooked: a module's call is a scope of the allocator's already, in
backward and on autograd's threads, too. What begins here is a recording, and
what ends it reads the rings.
"""

import numpy as np

from stratalloc.compat._package import (core as _core, modules as _modules,
                                        trace as _trace)
from stratalloc.compat.gpu_optimizer import _traced

_RING = 1 << 17  # events of a thread, unless somebody asked for more


class Ours:
    """One recording of one model. begin() and end() once each, on any thread;
    so_far() between them."""

    def __init__(self, model, most):
        self._model = model
        self._trace = _Larger(most)
        self._layers = {}

    def begin(self):
        self._layers = _modules.scopes_below(self._model)
        self._trace.__enter__()

    def end(self):
        self._trace.__exit__(None, None, None)
        return self._read()

    def so_far(self):
        return self._read()

    def _read(self):
        run = self._trace.run()
        # Modules that came meanwhile; those that went keep their names.
        self._layers |= _modules.scopes_below(self._model)
        return run, *_numbered(run, self._layers), True


class _Larger(_trace.Trace):
    """A recording whose rings keep as many events as are asked for, if it is
    the process's first: rings are made once. Never fewer than others expect."""

    def __init__(self, most):
        super().__init__()
        self._most = most

    def _begin(self):
        wanted = 1 << max(1, int(self._most - 1).bit_length())
        if wanted > _RING:
            try:
                return _core.begin_recording(ring_events=wanted)
            except ValueError:  # they are there, in another size
                pass
        return _core.begin_recording()


def _numbered(run, layers):
    """(names, entered, charged): see Traced."""
    names = [_traced.NO_LAYER, *dict.fromkeys(layers.values())]
    place = {name: i for i, name in enumerate(names) if i}
    entered = np.zeros(len(run.scopes), "<u4")
    known = {}
    for scope, name in layers.items():
        if scope < len(entered):
            entered[scope] = place[name]
            known[run.scopes[scope]] = place[name]
    charged = entered.copy()
    for scope, name in enumerate(run.scopes):
        # A scope that the program opened in a layer is part of it.
        while not charged[scope] and "/" in name:
            name = name.rpartition("/")[0]
            charged[scope] = known.get(name, 0)
    return names, entered, charged
