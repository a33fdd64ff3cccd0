# SPDX-License-Identifier: Apache-2.0
"""A scope around the birth of lazy parameters.

LazyLinear and its kind learn their shapes in the first call and allocate their
parameters there, inside the module's frame, whose memory is taken for
activations and never leaves. `materialize()` is where that happens, so it runs
with a frame of its own (category parameter, lifetime persistent) on the scope
that is calling. Parameters and buffers alike: both live as long as the module.
"""

import functools

from torch.compiler import is_compiling
from torch.nn.parameter import UninitializedTensorMixin

from stratalloc._native.stack import LIFETIME_PERSISTENT, PARAMETER
from stratalloc._tiering import ruled as _ruled


class Materialize:
    """Wraps and unwraps; one per installation."""

    def __init__(self, native):
        self.native = native
        self.active = False

    def install(self):
        self.active = True
        self._original = original = UninitializedTensorMixin.materialize
        native = self.native

        @functools.wraps(original)
        def materialize(tensor, *args, **kwargs):
            if is_compiling() or not self.active:
                return original(tensor, *args, **kwargs)
            scope, _, _ = native.current()
            below = native.depth()
            native.push(scope, PARAMETER,
                        _ruled.lifetime(tensor, LIFETIME_PERSISTENT))
            try:
                return original(tensor, *args, **kwargs)
            finally:
                native.leave(below)
                _ruled.arrived(tensor)

        self._ours = UninitializedTensorMixin.materialize = materialize

    def uninstall(self):
        self.active = False
        # Someone who wrapped on top of us keeps a wrapper that passes on.
        if UninitializedTensorMixin.materialize is self._ours:
            UninitializedTensorMixin.materialize = self._original
