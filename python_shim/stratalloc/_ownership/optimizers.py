# SPDX-License-Identifier: Apache-2.0
"""Scopes around Optimizer.step, and owners for gradients and state.

`step` of every optimizer class runs with the frame "Optimizer.<Class>"
(lifetime optimizer) on top: what it makes is temporary, but while it makes
state, which is at the first step (`making.py`). Pre and post hooks of torch
are not used: a post hook does not run when step raises, and the frame would
stay.

torch wraps `step` itself, once per class, when the first object of the class
is made (`Optimizer.profile_hook_step`). Ours goes *inside* that wrapper: it is
put around the raw function just before torch's, or, where torch's is there
already, torch's is rebuilt around ours. Schedulers, which wrap the bound
method of an object, see a plain function as before; one that was made before
`install` holds the earlier function, and its optimizer's steps have no frame.

Before a step the gradients are charged to the owners of their parameters,
after it each new state tensor once; all of them after a step that has left
more charged to the class than there was, since state that was replaced, and not
written in place, is in no count. What an optimizer makes while it is
constructed (Adagrad its sums) is state, too, and charged when that has ended.
"""

import functools
import types
import weakref

import torch
from torch.compiler import is_compiling
from torch.optim import Optimizer

from stratalloc._native.stack import (LIFETIME_OPTIMIZER, OPTIMIZER_STATE,
                                      TEMPORARY)
from stratalloc._ownership.construction import (Building, Construction,
                                                _subclasses, recognizer)
from stratalloc._ownership.making import Making, closures
from stratalloc._ownership.module_tensors import tensors_in


def _wrapper(original, steps):
    native = steps.native
    depth, push, leave = native.depth, native.push, native.leave
    closure_of = closures(original)

    @functools.wraps(original)
    def step(self, *args, **kwargs):
        if is_compiling() or not steps.active:
            return original(self, *args, **kwargs)
        scope, closure = steps.scope(self), closure_of(args, kwargs)
        makes = steps.before(self)
        below = depth()
        push(scope, OPTIMIZER_STATE if makes else TEMPORARY, LIFETIME_OPTIMIZER)
        try:
            if makes or closure is not None:
                with Making(steps, self, scope) as making:
                    if closure is not None:
                        args, kwargs = making.arguments(args, kwargs)
                    result = original(self, *args, **kwargs)
            else:
                result = original(self, *args, **kwargs)
        finally:
            leave(below)
        steps.after(self, stepped=True)
        return result

    return step


_is_ours = recognizer(_wrapper)


class _Seen:
    """What of one optimizer's state is charged already."""

    __slots__ = ("state", "counts", "strays", "stateless", "owned")

    def __init__(self):
        self.state = 0  # id of the dict: load_state_dict makes a new one
        self.counts = {}  # id(parameter) -> entries of its state
        self.strays = 0
        self.owned = 0  # bytes of the class's scope before the step
        self.stateless = set()  # ids of parameters that a step gave no state


class Steps:
    """Wraps and unwraps; one per installation."""

    def __init__(self, native, owners):
        self.native = native
        self.owners = owners
        self.active = False
        self._scopes = {}  # class -> scope id
        self._seen = weakref.WeakKeyDictionary()  # optimizer -> _Seen
        self._construction = Construction(
            native, Optimizer, Building(),
            lambda optimizer: (self.scope(optimizer), OPTIMIZER_STATE,
                               LIFETIME_OPTIMIZER), self._constructed)
        self._torch_hook = None
        self._our_hook = None

    def install(self):
        self._torch_hook = torch_hook = Optimizer.profile_hook_step
        self._torch_code = _inner_code(torch_hook)
        self.active = True

        @functools.wraps(torch_hook)
        def profile_hook_step(func):
            if self.active and not _is_ours(func):
                func = _wrapper(func, self)
            return torch_hook(func)

        self._our_hook = profile_hook_step
        self._load = torch_load = Optimizer.load_state_dict

        @functools.wraps(torch_load)
        def load_state_dict(optimizer, *args, **kwargs):
            result = torch_load(optimizer, *args, **kwargs)
            if self.active and not is_compiling():
                self.after(optimizer)
            return result

        self._our_load = Optimizer.load_state_dict = load_state_dict
        Optimizer.profile_hook_step = staticmethod(profile_hook_step)
        for cls in _subclasses(Optimizer):
            step = cls.__dict__.get("step")
            if self._is_torchs(step) and not _is_ours(step.__wrapped__):
                self._rebuild(cls, _wrapper(step.__wrapped__, self))
        self._construction.install()

    def uninstall(self):
        self.active = False
        self._construction.uninstall()
        if Optimizer.load_state_dict is self._our_load:
            Optimizer.load_state_dict = self._load
        if Optimizer.profile_hook_step is self._our_hook:
            Optimizer.profile_hook_step = staticmethod(self._torch_hook)
        for cls in _subclasses(Optimizer):
            step = cls.__dict__.get("step")
            if self._is_torchs(step) and _is_ours(step.__wrapped__):
                self._rebuild(cls, step.__wrapped__.__wrapped__)

    def _is_torchs(self, step):
        return (isinstance(step, types.FunctionType)
                and step.__code__ is self._torch_code
                and hasattr(step, "__wrapped__"))

    def _rebuild(self, cls, step):
        cls.step = self._torch_hook(step)
        cls.step.hooked = True  # torch's mark: not to be wrapped again

    def scope(self, optimizer):
        cls = type(optimizer)
        scope = self._scopes.get(cls)
        if scope is None:
            scope = self.native.intern("Optimizer." + cls.__name__)
            self._scopes[cls] = scope
        return scope

    def before(self, optimizer):
        """Charges gradients; whether the step will make state.

        All that another step makes is gone when it ends, but for what after()
        finds.
        """
        seen = self._of(optimizer)
        strays = self.owners.relabel_gradients(_parameters(optimizer))
        if strays > seen.strays:
            # Parameters put into a module's dict directly are found by one
            # walk; those that no module owns stay strays.
            self.owners.relabel_all()
            seen.strays = self.owners.relabel_gradients(_parameters(optimizer))
        seen.owned = self.native.owned(self.scope(optimizer))
        return self.lacks_state(optimizer)

    def lacks_state(self, optimizer):
        """Whether there is a gradient whose parameter has no state yet."""
        stateless, state = self._of(optimizer).stateless, optimizer.state
        # In the order of what the questions take: a tensor's hash is dear.
        return any(id(parameter) not in stateless and parameter not in state
                   and parameter.grad is not None
                   for parameter in _parameters(optimizer))

    def _constructed(self, optimizer):
        # One that wraps another may have none of its own.
        if {"state", "param_groups"} <= optimizer.__dict__.keys():
            self.after(optimizer)

    def after(self, optimizer, stepped=False):
        """Charges what of the state is new to the owners of its parameters.

        stepped: a step has ended; a parameter that has no state now gets none.
        """
        seen = self._of(optimizer)
        if seen.state != id(optimizer.state):
            seen.state = id(optimizer.state)
            seen.counts.clear()
            seen.stateless.clear()
        states = optimizer.state
        # State of parameters that no module owns is the class's for good.
        left = stepped and (self.native.owned(self.scope(optimizer))
                            != seen.owned)
        for parameter in _parameters(optimizer):
            state = states.get(parameter) if states else None
            if not state:
                if (stepped and id(parameter) not in seen.stateless
                        and parameter.grad is not None):
                    seen.stateless.add(id(parameter))
                continue
            if not left and seen.counts.get(id(parameter)) == len(state):
                continue
            # A copy: another thread's step may be filling it.
            values = list(state.values())
            # Lists grow without a word (LBFGS): looked at every time.
            if not any(isinstance(value, (list, dict)) for value in values):
                seen.counts[id(parameter)] = len(values)
            self.owners.relabel_state(parameter, values)

    def relabel_all(self):
        """What was put into states since they were looked at."""
        for optimizer in self._optimizers():
            self._of(optimizer).counts.clear()
            self.after(optimizer)

    def named_state(self, names):
        """[(owner, name, category, tensor)] of all states.

        names: id(parameter) -> (owner, name).
        """
        found = []
        for optimizer in self._optimizers():
            for parameter in _parameters(optimizer):
                if id(parameter) not in names:
                    continue
                owner, name = names[id(parameter)]
                state = optimizer.state.get(parameter, {})
                for key, value in list(state.items()):
                    found += [(owner, f"{name}.{key}", OPTIMIZER_STATE, tensor)
                              for tensor in tensors_in([value])]
        return found

    def _optimizers(self):
        # keyrefs() is one step; iterating over the dictionary itself is many,
        # between which another thread's optimizer may come.
        found = (ref() for ref in self._seen.keyrefs())
        return [optimizer for optimizer in found if optimizer is not None]

    def _of(self, optimizer):
        seen = self._seen.get(optimizer)
        if seen is None:
            seen = self._seen[optimizer] = _Seen()
        return seen


def _parameters(optimizer):
    for group in list(optimizer.param_groups):
        yield from list(group["params"])


def _inner_code(hook):
    """The code object of the function that torch's hook makes."""
    return hook(lambda self: None).__code__
