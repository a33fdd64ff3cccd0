# SPDX-License-Identifier: Apache-2.0
"""Every module of torch.nn that has a `bias` argument, with and without it.

Found by introspection; arguments and inputs come from the signatures, so a
module that a newer torch adds is tried too, and fails here if it needs more.
"""

import inspect
import itertools

import torch
from torch import nn

import stays

SIZE = 16
# What a required argument of __init__ is given, by its name, if not SIZE.
ARGUMENTS = {"kernel_size": 3, "nhead": 2, "num_heads": 2}
# Of arguments with a default, these are made smaller.
SMALLER = {"d_model": SIZE, "nhead": 2, "dim_feedforward": 2 * SIZE,
           "num_encoder_layers": 1, "num_decoder_layers": 1}
# Without it norms of batches and instances, which take `bias` since torch 2.12,
# may have no parameters.
AFFINE = {"affine": True}
INPUTS = [(4, SIZE), (4, 3, SIZE), (4, SIZE, SIZE), (4, SIZE, SIZE, SIZE),
          (4, SIZE, SIZE, SIZE, SIZE)]


def with_bias():
    for name in dir(nn):
        cls = getattr(nn, name)
        if (inspect.isclass(cls) and issubclass(cls, nn.Module)
                and "bias" in inspect.signature(cls.__init__).parameters):
            yield name, cls
    # Containers of layers take it by keyword.
    for name in ("RNN", "LSTM", "GRU"):
        yield name, getattr(nn, name)


def required(function):
    """Parameters without a default that can be passed by name."""
    return [p.name for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.name != "self"
            and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def make(cls, bias):
    arguments = {name: ARGUMENTS.get(name, SIZE)
                 for name in required(cls.__init__)}
    taken = inspect.signature(cls.__init__).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in taken.values()):
        return cls(SIZE, SIZE, bias=bias, device="cuda")  # LSTM(*args)
    arguments.update({name: value for name, value in (SMALLER | AFFINE).items()
                      if name in taken})
    return cls(**arguments, bias=bias, device="cuda")


def run(module):
    """The sum of the outputs for the first inputs that the module takes."""
    names = required(module.forward)
    refused = []
    for shape in INPUTS:
        inputs = [torch.randn(shape, device="cuda") for _ in names]
        try:
            out = module(*inputs)
        except (RuntimeError, ValueError, AssertionError, TypeError) as error:
            refused.append(f"{shape}: {error}")
            continue
        flat = torch.utils._pytree.tree_leaves(out)
        return sum(part.square().sum() for part in flat
                   if isinstance(part, torch.Tensor))
    raise AssertionError(f"{type(module).__name__} takes {names}: {refused}")


torch.manual_seed(0)
for (name, cls), bias in itertools.product(dict(with_bias()).items(),
                                           (True, False)):
    if cls in (nn.RNNBase, nn.RNNCellBase):
        continue  # abstract: no forward of their own
    module = make(cls, bias)
    run(module).backward()
    optimizer = torch.optim.AdamW(module.parameters())
    optimizer.step()
    stays.look(f"{name} bias={bias}", module, optimizer)
    del module, optimizer
stays.finish()
