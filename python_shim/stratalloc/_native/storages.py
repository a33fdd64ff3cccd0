# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a tensor are, whatever kind of tensor it is.

of() goes to the plain tensors inside: those of a wrapper subclass by its
__tensor_flatten__, again and again (DTensor, jagged nested tensors, torchao's);
indices and values of sparse layouts, scales of what is quantized by channel and
what functorch wraps by the bridge. No operator runs, so that asking brings
nothing back; only __tensor_flatten__ is asked of a subclass.

Raises HasNoMemory for what has none at all, TypeError for a subclass that does
not say what is inside.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from stratalloc._native import bridge as _bridge


class HasNoMemory(TypeError):
    """A tensor that stands for one, and holds no bytes anywhere."""


def of(tensor):
    """[(device, address, bytes)]: its storages on CUDA devices.

    The tensor may be on the CPU, or empty: then there is none.
    """
    if isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor):
        raise HasNoMemory(
            f"stratalloc: this {type(tensor).__name__} has no memory, it stands "
            "for a tensor while a graph is traced; name the tensor itself, "
            "outside of the tracing")
    inside = parts(tensor)
    if inside is not None:
        return [storage for part in inside for storage in of(part)]
    with torch._C.DisableTorchFunction():
        if is_lazy(tensor):
            raise HasNoMemory(
                "stratalloc: a parameter that is not initialised has no memory "
                "yet; run the module once before")
        found = _bridge.storages(tensor._cdata)
        if found is None and tensor.is_meta:
            raise HasNoMemory(
                f"stratalloc: a meta tensor (of shape {tuple(tensor.shape)}) "
                "has no memory; name it when it has some, after to_empty() or "
                "load_state_dict(assign=True)")
    if found is None:
        raise TypeError(
            f"stratalloc: nobody can tell where the bytes of a "
            f"{type(tensor).__name__} are: it has neither memory of its own "
            "nor a __tensor_flatten__; name the tensors inside it")
    return [(one.device, one.address, one.bytes) for one in found]


def parts(tensor):
    """The inner tensors of a wrapper subclass, or None: it is none."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return None
    names, _ = flatten()
    inside = (getattr(tensor, name) for name in names)
    return [part for part in inside if isinstance(part, torch.Tensor)]
