# SPDX-License-Identifier: Apache-2.0
"""Tensors of one module, its class's name, and tensors of optimizer state.

All is read from a module's __dict__: what a subclass answers is its own affair,
even an exception.
"""

import torch

from stratalloc._native.stack import BUFFER, PARAMETER

KINDS = (("_parameters", PARAMETER), ("_buffers", BUFFER))


def wrapped_child(module):
    """The one child that a pass-through container stands for, or None.

    torch.compile's OptimizedModule, DataParallel and DistributedDataParallel
    own no tensors; their path is that of the model inside.
    """
    children = module.__dict__.get("_modules") or {}
    if len(children) != 1:
        return None
    if "_orig_mod" in children:
        return "_orig_mod"
    if "module" in children and isinstance(
            module, (torch.nn.DataParallel,
                     torch.nn.parallel.DistributedDataParallel)):
        return "module"
    return None


def class_name(module):
    # A ScriptModule's class says nothing; it keeps the original's name.
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "original_name", None) or type(module).__name__
    return type(module).__name__


def tensors_in(values):
    """The tensors of an optimizer's state, in lists and dicts too (LBFGS)."""
    for value in list(values):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def registered(module, name):
    """The parameter or buffer of this name that `module` has now, or None.

    From its __dict__: what a subclass answers is its own affair, even an
    exception. A ScriptModule's dicts are wrappers without get().
    """
    for kind, _ in KINDS:
        try:
            return module.__dict__[kind][name]
        except KeyError:
            continue
    return None


def tensors_of(module):
    """The parameters and buffers of this module alone."""
    for kind, _ in KINDS:
        for _, tensor in list((module.__dict__.get(kind) or {}).items()):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def leaves_of(module):
    """The tensors of this module that may have a gradient."""
    return (tensor for tensor in tensors_of(module) if tensor.is_leaf)
