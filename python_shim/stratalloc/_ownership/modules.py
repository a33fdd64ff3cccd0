# SPDX-License-Identifier: Apache-2.0
"""Module scopes: who allocates, by module, without a change to the model.

`install()` wraps
  nn.Module.__call__   category activation, lifetime transient
  nn.Module._apply     moves.py (to, cuda, half ...), parameter, persistent
  construction         construction.py, category parameter, persistent
  lazy parameters      materialize.py, category parameter, persistent
  nn.Module.__setstate__  no frame: re-labels what deepcopy and pickle made,
                          whose tree the next report names
  Optimizer.step       optimizers.py, category optimizer_state or temporary
  compiled autograd    _hooks/compiled_backward.py, activation, transient
so that the module's scope is on top *while* memory is allocated, and listens
to the registration of parameters and buffers to re-label what was allocated
before (a checkpoint that was loaded before the module existed).

The wrapper of __call__ is Python and leaves in its first statement when
torch.compile or torch.export traces it: Dynamo follows it and sees the model
as if it were not there (one graph, no breaks). torch's global forward hooks
would cost 1.5 us per call, because they force the slow path.

`uninstall()` restores everything. Wrappers that someone saved meanwhile pass
on without a frame.
"""

from __future__ import annotations

import os
import threading

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as _torch_module

from stratalloc._hooks.compiled_backward import CompiledBackward
from stratalloc._native import bridge as _bridge
from stratalloc._native import older_spellings as _older_spellings
from stratalloc._native import stack as _stack
from stratalloc._native import state as _state
from stratalloc._native import storages as _storages
from stratalloc._native.argument_types import Category
from stratalloc._native.errors import NotEnabledError
from stratalloc._native.stack import (BUFFER, LIFETIME_PERSISTENT, PARAMETER,
                                      ROOT)
from stratalloc._ownership import scope_names as _scope_names
from stratalloc._ownership.construction import Construction, building
from stratalloc._ownership.materialize import Materialize
from stratalloc._ownership.moves import Moves
from stratalloc._ownership.optimizers import Steps
from stratalloc._ownership.owners import Owners

_lock = threading.Lock()
_installed = None


_followers = []  # told when modules got other paths


def when_moved(follow):
    """follow({old path: new path}) is called when modules got other paths."""
    _followers.append(follow)


class _Installation:
    """Everything that install() made and uninstall() takes back."""

    def __init__(self):
        native = _stack.functions()
        self.active = False
        self.owners = Owners()
        self.construction = Construction(
            native, torch.nn.Module, building,
            lambda module: (self.owners.class_scope(module), PARAMETER,
                            LIFETIME_PERSISTENT), lambda module: None,
            self._on_class)
        self.materialize = Materialize(native)
        self.steps = Steps(native, self.owners)
        self.owners.on_moved = self._on_moved
        self.native = native
        self.moves = Moves(native, self.owners, self.scope_of)
        self.compiled_backward = CompiledBackward(native, self.owners)

    def install(self):
        module = torch.nn.Module
        self.active = True
        self._call, module.__call__ = module.__call__, _call_wrapper(
            module.__call__, self)
        self._our_call = module.__call__
        self._set, module.__setstate__ = module.__setstate__, _set_wrapper(
            module.__setstate__, self)
        self._our_set = module.__setstate__
        self._handles = [
            _torch_module.register_module_parameter_registration_hook(
                self._on_parameter),
            _torch_module.register_module_buffer_registration_hook(
                self._on_buffer),
            _torch_module.register_module_module_registration_hook(
                self._on_child),
        ]
        self.moves.install()
        self.construction.install()
        self.materialize.install()
        self.steps.install()
        self.compiled_backward.install()

    def uninstall(self):
        module = torch.nn.Module
        self.active = False
        self.compiled_backward.uninstall()
        self.steps.uninstall()
        self.materialize.uninstall()
        self.construction.uninstall()
        self.moves.uninstall()
        for handle in self._handles:
            handle.remove()
        # Someone who wrapped on top of us keeps a wrapper that passes on.
        if module.__call__ is self._our_call:
            module.__call__ = self._call
        if module.__setstate__ is self._our_set:
            module.__setstate__ = self._set

    def scope_of(self, module):
        """The scope of a module without a path; gives it one if it may.

        While an __init__ runs nothing is named: the tree is not finished, and
        a child called there would be a root for ever.
        """
        if building.stack:
            return self.owners.class_scope(module)
        return self.owners.name_tree(module)

    def _on_class(self, cls):
        self.moves.wrap(cls)

    def _on_parameter(self, module, name, parameter):
        if not is_compiling() and isinstance(parameter, torch.Tensor):
            self.owners.register(module, name, parameter, PARAMETER)

    def _on_buffer(self, module, name, buffer):
        if not is_compiling() and isinstance(buffer, torch.Tensor):
            self.owners.register(module, name, buffer, BUFFER)

    def _on_child(self, module, name, child):
        if not is_compiling():
            self.owners.joined(module, child)

    def _on_moved(self, paths):
        self.steps.relabel_all()
        for follow in _followers:
            follow(paths)


def _call_wrapper(original, installation):
    native, owners = installation.native, installation.owners
    enter, leave, current = native.enter, native.leave, native.current
    scopes, roots, adopt = owners.scopes, owners.root_scopes, owners.adopt

    def __call__(self, *args, **kwargs):
        if is_compiling() or not installation.active:
            return original(self, *args, **kwargs)
        scope = scopes.get(id(self))
        if scope is None:
            scope = installation.scope_of(self)
        if scope in roots and current()[0] == ROOT:
            adopt(scope, (*args, kwargs))
        below = enter(scope)
        try:
            # torch's own __call__, written out: a frame and a copy of the
            # arguments less per call.
            if self._compiled_call_impl is None:
                return self._call_impl(*args, **kwargs)
            return self._compiled_call_impl(*args, **kwargs)
        finally:
            leave(below)

    def __call__on_another(self, *args, **kwargs):
        if is_compiling() or not installation.active:
            return original(self, *args, **kwargs)
        scope = scopes.get(id(self))
        if scope is None:
            scope = installation.scope_of(self)
        if scope in roots and current()[0] == ROOT:
            adopt(scope, (*args, kwargs))
        below = enter(scope)
        try:
            return original(self, *args, **kwargs)
        finally:
            leave(below)

    if original is torch.nn.Module._wrapped_call_impl:
        return __call__
    # Someone wrapped __call__ before us: theirs is what has to run.
    return __call__on_another


def _set_wrapper(original, installation):
    def __setstate__(self, state):
        original(self, state)
        if installation.active and not is_compiling():
            installation.owners.register_all(self)
            installation.owners.copied(self)

    return __setstate__


def _after_fork():
    global _lock
    _lock = threading.Lock()
    if _installed is not None:
        _installed.owners.reset_lock()
        _installed.compiled_backward.reset_lock()


os.register_at_fork(after_in_child=_after_fork)


def install():
    """Wraps nn.Module and Optimizer. Idempotent.

    Raises ImportError when the scope extension is missing.
    """
    global _installed
    with _lock:
        if _installed is None:
            installation = _Installation()
            installation.install()
            _installed = installation


def uninstall():
    """Restores nn.Module and Optimizer; names are forgotten. Idempotent."""
    global _installed
    with _lock:
        if _installed is not None:
            _installed.uninstall()
            _installed = None


def installed():
    return _installed is not None


def names():
    """Path -> scope id of every live named module; {} if not installed."""
    installation = _installed
    return installation.owners.names() if installation is not None else {}


def owner(tensor):
    """The scope id of the module that owns a parameter or buffer, or None."""
    installation = _installed
    return installation.owners.owner(tensor) if installation else None


def compiled_backwards():
    """How many graphs compiled autograd has run in the place of nodes."""
    installation = _installed
    return installation.compiled_backward.count if installation else 0


def named_tensors():
    """[(owner, name, category, tensor)] of what modules and optimizers hold.

    Without gradients: only the thread that trains may read those.
    """
    installation = _installed
    if installation is None:
        return []
    found = installation.owners.named_tensors()
    names = {id(tensor): (owner, name)
             for owner, name, _, tensor in found}
    return found + installation.steps.named_state(names)


def annotated(tensor):
    """Whether annotate() has said whose this is."""
    return (_installed is not None
            and _installed.owners.annotated.has_any_of(tensor))


def relabel_all():
    """Charges what modules and optimizers hold to the modules that own it.

    For reports, from any thread: some is otherwise labelled at the next
    optimizer step. Gradients are not looked at. Costs a few microseconds per
    tensor. Returns the number of modules.
    """
    installation = _installed
    if installation is None:
        return 0
    count = installation.owners.relabel_all()
    installation.steps.relabel_all()
    return count


def watch(model: torch.nn.Module,
          optimizer: torch.optim.Optimizer | None = None) -> None:
    """Names the modules of `model` now, and the state of `optimizer`.

    Call it to ask about memory before the first forward or step: otherwise a
    module is named when it is first called or moved, and the state when the
    optimizer steps. Gradients that the program assigned (`p.grad = tensor`) are
    charged here, too, and otherwise by the next step. Do not call it while
    another thread sets gradients of `model` to None.

    Args:
      model: with every module below it.
      optimizer: one that steps parameters of the model.

    Raises:
      TypeError: model is no nn.Module, or optimizer no torch.optim.Optimizer.
      NotEnabledError: before enable().
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError("stratalloc.watch: model must be an nn.Module, not "
                        f"{type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer,
                                                torch.optim.Optimizer):
        raise TypeError("stratalloc.watch: optimizer must be a "
                        "torch.optim.Optimizer, not "
                        f"{type(optimizer).__name__}")
    path_of(model)
    installation = _installed
    installation.owners.relabel_tree(model)
    if optimizer is not None:
        installation.steps.after(optimizer)


def path_of(module):
    """The path of a module, which gets one if it has none.

    Raises NotEnabledError if nothing is charged.
    """
    installation = _installed
    if installation is None:
        raise NotEnabledError(_state.why_not_enabled())
    return installation.native.name(
        installation.owners.name_tree(module, again=True))


def scopes_below(model):
    """{scope id: name in model.named_modules()}, which gives a path to modules
    that have none. Of two names for one scope (a container that owns nothing)
    the first. NotEnabledError if nothing is charged."""
    path_of(model)
    scopes, found = _installed.owners.scopes, {}
    for name, module in model.named_modules():
        scope = scopes.get(id(module))
        if scope is not None:
            found.setdefault(scope, name)
    return found


@_older_spellings.keyword("name", "scope")
def annotate(tensor: torch.Tensor, scope: str,
             category: Category | None = None) -> int:
    """Charges the memory of `tensor` to `scope` until it is freed.

    For a cache, a pool of buffers, or a part of what a module or an optimizer
    owns. This owner is kept until the tensor is freed. All of the storage moves,
    and with it what shares it. Memory that comes in its place is charged
    anew (a model that is moved). A gradient goes to its parameter's owner again
    when a backward adds to it; a parameter, buffer or state that is sparse or
    quantized to its module with the next report, watch() or step.

    Args:
      tensor: on a CUDA device; others have nothing to charge.
      scope: a whole path, with the rules of stratalloc.scope for its names.
        As a keyword it may be `name`, the earlier spelling.
      category: as in stratalloc.scope; None: as it was.

    Returns: the bytes that were charged, 0 of a tensor that has none of ours.

    Raises: TypeError, ValueError as stratalloc.scope.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("stratalloc.annotate: tensor must be a torch.Tensor, "
                        f"not {type(tensor).__name__}")
    _scope_names.check("annotate", scope, "scope")
    number = _scope_names.category("annotate", category)
    if not _bridge.loaded():
        return 0  # no memory is ours
    functions = _stack.functions()
    number_of_scope = functions.intern(scope)
    storages = _storages.of(tensor)
    if _installed is not None:  # before: a report may come between
        _installed.owners.annotated.add(tensor)
    return sum(size for _, address, size in storages
               if size and functions.relabel(address, size, number_of_scope,
                                             -1 if number is None else number))
