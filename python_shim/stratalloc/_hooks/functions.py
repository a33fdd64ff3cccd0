# SPDX-License-Identifier: Apache-2.0
"""autograd.Function: the tensors of a custom function stay while it runs.

Extensions that are no operators (fused layers, older attention kernels) are
called in a Function's forward or backward, with data pointers of its tensors.
`install()` replaces `Function.apply` and, for the backward pass,
`BackwardCFunction.apply` and `.saved_tensors`, so that

  the tensors given to apply, and their tangents of forward mode,
  the gradients given to backward,
  what backward takes out of ctx.saved_tensors, or finds in ctx

are on the device and stay until the method returns, with what it allocates: in
lists, tuples and dicts two deep, and inside wrapper subclasses. It is a call,
no operator: operators inside work as ever. torch.OutOfMemoryError if its
tensors do not fit the device together.

Functions of torch itself are passed on: they consist of operators and of calls
that other hooks see, and some take all parameters of a model (DataParallel's
Broadcast, the graphs of AOT autograd), which need not fit.

torch.compile and torch.func see the functions they know: while they trace, or
nothing can be evicted, everything is passed on.
"""

import threading

from torch.compiler import is_compiling

from stratalloc._hooks.foreign_call import call, enter, leave
from stratalloc._hooks.patching import installed, passing_on

_running = threading.local()


def _replace(hooks):
    from torch.autograd import function

    hooks.replace(function.Function, "apply", _forward)
    hooks.replace(function.BackwardCFunction, "apply", _backward)
    # From torch 2.13 on, of functions whose gradients come as one list.
    hooks.replace(function.BackwardCFunction, "apply_boxed", _backward)
    hooks.replace(function.BackwardCFunction, "saved_tensors", _saved_tensors)


install, uninstall = installed(_replace)


def _is_torchs(cls):
    return cls.__module__.startswith("torch.")


def _unbound(method):
    """A class method as a function of its class; it is one of C from torch 2.14
    on."""
    if isinstance(method, classmethod):
        return method.__func__

    def function(cls, *args, **kwargs):
        return method.__get__(None, cls)(*args, **kwargs)

    return passing_on(method, function)


def _forward(original):
    function = _unbound(original)

    def apply(cls, *args, **kwargs):
        if is_compiling() or _is_torchs(cls):
            return function(cls, *args, **kwargs)
        outer = getattr(_running, "node", None)
        if outer is None:
            return call(cls.__name__, args, tuple(kwargs.values()), True,
                        function, (cls, *args), kwargs)
        # Calls nest: what the backward around this one unpacks in here would
        # be let go with this one.
        _running.node = None
        try:
            return call(cls.__name__, args, tuple(kwargs.values()), True,
                        function, (cls, *args), kwargs)
        finally:
            _running.node = outer

    return classmethod(passing_on(function, apply))


def _backward(original):
    def run(self, *args):
        outer = getattr(_running, "node", None)
        calls = []  # for what backward unpacks, the newest last
        _running.node = (self, calls)
        try:
            return original(self, *args)
        finally:
            _running.node = outer
            while calls:
                leave(calls.pop())

    def apply(self, *args):
        if is_compiling() or _is_torchs(self._forward_cls):
            return original(self, *args)
        return call(type(self).__name__, (*args, *vars(self).values()), (),
                    True, run, (self, *args), None)

    return passing_on(original, apply)


def _saved_tensors(original):
    def saved_tensors(self):
        tensors = original.__get__(self)
        node, calls = getattr(_running, "node", None) or (None, None)
        if node is self:
            entered = enter(type(self).__name__, tensors, (), False, True)
            if entered is not None:
                calls.append(entered)
        return tensors

    return property(saved_tensors, doc=original.__doc__)
