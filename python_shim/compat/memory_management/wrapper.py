# SPDX-License-Identifier: Apache-2.0
"""ModuleWrapper: what a module that a manager offloads is, too.

A wrapped module is the same object: its class becomes one that is derived from
ModuleWrapper and from its own, with the same name. So isinstance() holds for
both, names of modules, parameters and state_dict() keys stay, whoever holds the
module holds the wrapped one, and nothing is registered on it. A module nested
in a wrapper would change each of these, and hooks on it are copied with it and
have no place for offload_all().

Copies and pickles are of the plain class and managed by nobody. What is kept
of a module is kept beside it (Managed, by the module), and ends with it.

Thread-safety: any thread; wrap() and unwrap() under `lock`.
"""

import contextlib
import copyreg
import math
import os
import threading
import time
import types
import weakref

import torch

from stratalloc.compat._package import ruled as _ruled
from stratalloc.compat.memory_management import spilled

_managed = weakref.WeakKeyDictionary()  # module -> Managed
# A module's own class -> that of its wrapped ones.
_classes = weakref.WeakValueDictionary()


def _nobody():
    return None


# Held by whoever wraps and unwraps, whichever manager does it.
lock = threading.RLock()


def _after_fork():
    global lock
    lock = threading.RLock()  # a thread that is gone may have held it


os.register_at_fork(after_in_child=_after_fork)


class Managed:
    """What a manager knows of one module.

    away: it was offloaded and has not been used since; what arrives on a GPU
    then leaves again. last_used: by time.monotonic().
    """

    __slots__ = ("manager", "module", "module_id", "away", "last_used",
                 "offloads", "next", "__weakref__")

    def __init__(self, manager, module, module_id):
        self.manager = weakref.ref(manager)
        self.module = weakref.ref(module)
        self.module_id = module_id
        self.away = False
        self.last_used = -math.inf
        self.offloads = 0
        self.next = _nobody  # what ran next, last time

    def tensors(self):
        """Its parameters and buffers, with those of the modules in it."""
        module = self.module()
        return [] if module is None else tensors_of(module)


def tensors_of(module):
    """Parameters and buffers of a module, whatever other threads do to it."""
    while True:
        try:
            return [*module.parameters(), *module.buffers()]
        except RuntimeError as error:
            # Another thread gave it a parameter meanwhile: looked at again.
            if "changed size during iteration" not in str(error):
                raise


def managed(module):
    """The Managed of a module, or None."""
    return _managed.get(module)


class ModuleWrapper:
    """A module under a MemoryManager; mixed into the module's own class."""

    def offload_all(self):
        """Offloads the module now; returns the bytes that left.

        Whatever uses it next brings them back."""
        record, manager = self._record()
        return manager.offload(record)

    def load_all(self):
        """Brings the module back now; returns the bytes that came.

        Raises torch.OutOfMemoryError if they do not fit its GPU."""
        record, manager = self._record()
        return manager.load(record)

    def get_memory_info(self):
        """A dict: `module_id`; `total_parameters` and `offloaded_parameters`,
        how many there are and of how many anything is away; `device`, `host`
        and `disk`, bytes of parameters and buffers; `offloads`, how often it
        left; `is_offloaded`, whether anything is away."""
        record, manager = self._record()
        return manager.memory_info(record)

    def _record(self):
        record = managed(self)
        manager = None if record is None else record.manager()
        if manager is None:
            raise RuntimeError(
                f"stratalloc: no manager has this {type(self).__name__} any "
                "more: it was given up by cleanup(), or is a copy made inside "
                "of torch; wrap it again")
        return record, manager

    def __call__(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return super().__call__(*args, **kwargs)
        record = managed(self)
        manager = None if record is None else record.manager()
        if manager is None:
            return super().__call__(*args, **kwargs)
        record.away, record.last_used = False, time.monotonic()
        if manager.strategies.spills():
            with manager.present(record):
                result = super().__call__(*args, **kwargs)
        else:
            result = super().__call__(*args, **kwargs)
        record.last_used = time.monotonic()
        if manager.config.aggressive_post_forward_offload:
            manager.offload_if_full(record)
        return result

    def _apply(self, *args, **kwargs):
        with spilled.in_use(tensors_of(self)):
            result = super()._apply(*args, **kwargs)
        record = managed(self)
        manager = None if record is None else record.manager()
        if manager is not None:
            manager.moved(record)
        return result

    def _load_from_state_dict(self, *args, **kwargs):
        with spilled.in_use(tensors_of(self)), _rules_go_along(self):
            return super()._load_from_state_dict(*args, **kwargs)

    def __reduce_ex__(self, protocol):
        with spilled.in_use(tensors_of(self)):
            made = super().__reduce_ex__(protocol)
        own = type(self)._own_class
        if not isinstance(made, tuple):
            return made
        function, arguments, *rest = made
        if function is copyreg.__newobj__ and arguments == (type(self),):
            # pickle wants that function's class to be the object's.
            return (copyreg._reconstructor, (own, object, None), *rest)
        return (function, tuple(own if one is type(self) else one
                                for one in arguments), *rest)


def _rules_go_along(module):
    """Around what may swap tensors, which refuses those that are held weakly,
    as those with a rule are (_tiering/rules.py)."""
    if (not torch.__future__.get_swap_module_params_on_conversion()
            or not _ruled.some()):
        return contextlib.nullcontext()
    return _ruled.Moved(module)


def wrap(module, record):
    """Makes `module` a ModuleWrapper, known as `record`. Raises TypeError."""
    if not isinstance(module, ModuleWrapper):
        try:
            # Past a __setattr__ of the module's own.
            object.__setattr__(module, "__class__", wrapped_class(module))
        except (AttributeError, TypeError) as error:
            raise _underivable(module, error) from None
    _managed[module] = record


def wrapped_class(module):
    """The class that it has when it is wrapped. Raises TypeError."""
    if isinstance(module, ModuleWrapper):
        return type(module)
    try:
        return _wrapped_class(type(module))
    except Exception as error:  # __init_subclass__ raises what it likes
        if str(error).startswith("stratalloc: "):
            raise
        raise _underivable(module, error) from None


def _underivable(module, error):
    if str(error).startswith("stratalloc: "):
        return error
    return TypeError(
        f"stratalloc: a {type(module).__name__} cannot be wrapped: nothing can "
        f"be derived from its class ({error}); wrap the modules inside of it")


def unwrap(module):
    """The module is of its own class again, and nobody's."""
    if _managed.pop(module, None) is None:
        return
    if "_own_class" in vars(type(module)):
        object.__setattr__(module, "__class__", type(module)._own_class)
    elif not any(isinstance(one, type(module)) for one in list(_managed)):
        # Of a class that somebody derived from ours since, as parametrizations
        # do: that is derived from the module's own again.
        for derived in type(module).__mro__:
            if "_own_class" not in vars(derived):
                _derive_from_own(derived)


def _derive_from_own(derived):
    bases = tuple(vars(one).get("_own_class", one) for one in derived.__bases__)
    if bases != derived.__bases__:
        derived.__bases__ = bases


def why_not(module):
    """Why this module cannot be wrapped, as a clause; None if it can."""
    if not isinstance(module, torch.nn.Module):
        return f"it is no torch.nn.Module but {type(module).__name__}"
    if isinstance(module, torch.jit.ScriptModule):
        return ("it is compiled by TorchScript, which runs it without Python; "
                "wrap it before torch.jit.script")
    if any(map(torch.nn.parameter.is_lazy, tensors_of(module))):
        return ("it has parameters that are not made yet, and becomes another "
                "class when they are; run the model once before")
    return None


def _wrapped_class(own):
    made = _classes.get(own)
    if made is None:
        made = types.new_class(
            own.__name__, (ModuleWrapper, own), {},
            lambda names: names.update(
                _own_class=own, __module__=own.__module__,
                __qualname__=own.__qualname__, __doc__=own.__doc__))
        _classes[own] = made
    return made
