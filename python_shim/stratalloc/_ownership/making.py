# SPDX-License-Identifier: Apache-2.0
"""What of a step that makes state is state, and what is temporary.

torch's optimizers make the state of a group in `_init_group`, before they
compute: what is allocated there is state. What comes after it is temporary,
unless `_init_group` has looked a parameter's state up and left it empty, as
SGD's does: then the computation makes it. An optimizer without `_init_group`
makes its state anywhere, so all that its step makes is state until it ends.
A closure is the program's own code: what it allocates outside of modules is
temporary, and the gradients that say whether state is missing are those that it
leaves.

`_init_group` and the closure are replaced for one step of one optimizer, in its
__dict__ and among the arguments. The thread of the step alone.
"""

import functools
import inspect

from stratalloc._native.stack import OPTIMIZER_STATE, TEMPORARY


def closures(step):
    """(args, kwargs) -> the closure among these arguments of `step`, or None.

    torch's `step` takes it as its first argument, named so.
    """
    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        names = []
    if names[1:2] != ["closure"]:
        return lambda args, kwargs: None

    def closure_of(args, kwargs):
        found = args[0] if args else kwargs.get("closure")
        return found if callable(found) else None

    return closure_of


class Making:
    """One step; its frame is on top."""

    def __init__(self, steps, optimizer, scope):
        self._steps = steps
        self._optimizer = optimizer
        self._scope = scope

    def __enter__(self):
        self._own = self._optimizer.__dict__
        self._before = self._own.get("_init_group")
        original = getattr(self._optimizer, "_init_group", None)
        if callable(original):
            self._own["_init_group"] = self._around_init(original)
        return self

    def __exit__(self, *exception):
        if self._before is not None:
            self._own["_init_group"] = self._before
        else:
            self._own.pop("_init_group", None)
        return False

    def arguments(self, args, kwargs):
        """Those of step, with its closure replaced."""
        if args:
            return (self._around_closure(args[0]), *args[1:]), kwargs
        closure = self._around_closure(kwargs["closure"])
        return args, {**kwargs, "closure": closure}

    def _around_init(self, original):
        @functools.wraps(original)
        def _init_group(*args, **kwargs):
            self._expect(True)
            try:
                return original(*args, **kwargs)
            finally:
                self._expect(self._is_to_come())

        return _init_group

    def _around_closure(self, original):
        def closure(*args, **kwargs):
            self._expect(False)
            try:
                return original(*args, **kwargs)
            finally:
                self._expect(self._steps.lacks_state(self._optimizer))

        return closure

    def _expect(self, state):
        self._steps.native.recategorize(
            self._scope, OPTIMIZER_STATE if state else TEMPORARY)

    def _is_to_come(self):
        """Whether a parameter's state was looked up and has nothing yet."""
        states = self._optimizer.state
        return any(parameter.grad is not None and parameter in states
                   and not states[parameter]
                   for group in self._optimizer.param_groups
                   for parameter in group["params"])
