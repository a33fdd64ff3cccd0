# SPDX-License-Identifier: Apache-2.0
"""The storages of a tensor, a module, or a tuple of them.

A storage is its Python object: PyTorch keeps that one object for as long as
anybody, Python or C++, uses the storage, and lets go of it with the memory. So
views, tied weights and detached tensors are one storage, and a weak reference
to the object dies when the last of them does, not with the first. No address is
asked for: that would bring evicted memory back, and materialise lazy copies.

named() is for what a program names: TypeError for what has no storages.
sighted() is for what PyTorch returned: it never raises of its own, and what it
cannot look into has none.
"""

import torch
from torch.nn.parameter import is_lazy

from stratalloc.compat._package import storages as _storages

# Methods of the base: torch.Tensor's may be replaced by who listens to them.
_BASE = torch._C.TensorBase
storage_of = _BASE.untyped_storage
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def named(thing):
    """[UntypedStorage] of a tensor, module, tuple or list of them.

    Empty and meta storages, and parameters that are not initialised, have no
    bytes and are left out. TypeError names what is none of these.
    """
    return [storage for tensor in _tensors(thing, "")
            for storage in _of(tensor)]


def sighted(result):
    """[UntypedStorage] of what a function of PyTorch returned."""
    if isinstance(result, torch.Tensor):
        try:
            return _of(result)
        except TypeError:
            return []
    if isinstance(result, (tuple, list)) and type(result) is not torch.Size:
        return [storage for each in result for storage in
                (sighted(each) if isinstance(each, torch.Tensor) else ())]
    return []


def _tensors(thing, where):
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
        yield from thing.buffers()
    elif isinstance(thing, (tuple, list)):
        for index, each in enumerate(thing):
            yield from _tensors(each, f"{where}[{index}]")
    else:
        raise TypeError(
            f"memlord: {f'item {where} is' if where else 'this is'} a "
            f"{type(thing).__qualname__}, and memory is counted of tensors and "
            "modules, alone or in a tuple or list: name those inside it")


def _of(tensor):
    if type(tensor) not in _PLAIN:
        inside = _storages.parts(tensor)
        if inside is not None:
            return [storage for part in inside for storage in _of(part)]
        if is_lazy(tensor):
            return []
    with torch._C.DisableTorchFunction():  # modes and subclasses hear nothing
        inside = _sparse_parts(tensor, tensor.layout)
        if inside is not None:
            return [storage for part in inside for storage in _of(part)]
        try:
            storage = storage_of(tensor)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            raise TypeError(
                f"memlord: nobody can tell where the bytes of this "
                f"{type(tensor).__qualname__} of layout {tensor.layout} are: "
                f"{str(error).splitlines()[0]}; name the tensors it was made "
                "of") from None
    # One that stands for a tensor (FakeTensor) has a storage of meta, too.
    if storage.device.type == "meta" or not storage.nbytes():
        return []
    return [storage]


def _sparse_parts(tensor, layout):
    """The tensors that hold the bytes of this one, or None: it does itself."""
    if layout is torch.strided:
        return None
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in _COMPRESSED:
        rows, columns = _COMPRESSED[layout]
        return [getattr(_BASE, name)(tensor)
                for name in (rows, columns, "values")]
    return None
