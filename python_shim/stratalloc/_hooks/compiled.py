# SPDX-License-Identifier: Apache-2.0
"""Compiled code launches kernels that no operator shows.

`install()` replaces, once torch or triton has imported them and never before,

  CompiledFxGraph.__call__, CompiledAOTI.__call__    one call of compiled code
  CudaLauncher.__call__ of triton                    one launch

so that their tensors are the operands of one operator: on the device, and there
until the call returns, with whatever the call allocates. Graphs that were
compiled before are reached too, since Python looks methods up in the class.

A region whose operands do not fit the device together raises
torch.OutOfMemoryError, which has its bytes, before anything is launched;
`compile_per_layer` makes regions of one block each.

Not here: RegionalOutputCode, which is a sequence of operators and of regions
that are CompiledFxGraphs themselves; it need not fit as a whole. AOTInductor's
own runner, which no Python calls. Frozen parameters are no inputs of a graph:
`pin()` the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from stratalloc._hooks.foreign_call import call
from stratalloc._hooks.patching import installed, passing_on

if TYPE_CHECKING:
    import torch

_Module = TypeVar("_Module", bound="torch.nn.Module")


def _replace(hooks):
    def on_output_code(module):
        for name in ("CompiledFxGraph", "CompiledAOTI"):
            graph = getattr(module, name, None)
            if graph is not None:
                hooks.replace(graph, "__call__", _graph_call)

    def on_triton(module):
        hooks.replace(module.CudaLauncher, "__call__", _launch)

    hooks.when_imported("torch._inductor.output_code", on_output_code)
    hooks.when_imported("triton.backends.nvidia.driver", on_triton)


install, uninstall = installed(_replace)


def _graph_call(original):
    def __call__(self, inputs):
        # The callee empties the list; what is entered are addresses.
        return call("a compiled graph", inputs, (), False, original,
                    (self, inputs), None)
    return passing_on(original, __call__)


def _launch(original):
    def __call__(self, *args):
        return call("a Triton kernel", [*args, *_bases(args)], (), False,
                    original, (self, *args), None)
    return passing_on(original, __call__)


def _bases(args):
    """The tensors behind Triton's own wrappers: descriptors, reinterpret()."""
    return [arg.base for arg in args
            if type(arg).__module__.startswith("triton.")
            and hasattr(arg, "base")]


def compile_per_layer(module: _Module, **options: Any) -> _Module:
    """torch.compile, by block: each region needs the device for one block.

    Compiles every module of a ModuleList or Sequential in `module`, itself
    included, in place, as `Module.compile` does; the innermost lists only. Where
    there are none, `module` as a whole. The code between blocks runs eagerly.
    `options` are torch.compile's. Returns `module`.

    A model that torch.compile takes as one region must fit the device whole;
    this way the blocks take turns.
    """
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError("stratalloc: compile_per_layer takes a module, not "
                        f"{type(module).__name__}")
    for number, block in enumerate(list(_blocks(torch, module)) or [module]):
        # Where Module.compile puts it, so that copies and pickles leave it out.
        # Modules of torch's own are skipped there: Dynamo looks into them only
        # from a frame that is not torch's.
        block._compiled_call_impl = torch.compile(
            _from_outside(block._call_impl, number), **options)
    return module


def _from_outside(call_impl, number):
    def block(*args, **kwargs):
        return call_impl(*args, **kwargs)

    # Dynamo counts recompilations by code object: each block has its own.
    block.__code__ = block.__code__.replace(co_name=f"block_{number}")
    return block


def _blocks(torch, module):
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    for child in module.children():
        inner = list(_blocks(torch, child))
        if inner:
            yield from inner
        elif isinstance(module, lists):
            yield child
