# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory whose bytes are in a spill file until they are used.

Where there is no GPU this is how modules are offloaded: offload() writes a
tensor's bytes to a _spill.SpillFile and lets its memory go. The tensor object
stays, its class becomes one with a __torch_function__: whatever is called with
it next brings the bytes back, into new memory, before it runs. So state_dict(),
deepcopy, pickle, an optimizer's step and a direct use need nothing of their
own. Until then the tensor has no elements and so many dimensions of size 0
that no operator broadcasts with it: what does not go through Python's functions
(torch.func, a compiled graph) is refused and never reads other bytes.

Only what nobody else holds leaves: no view, no alias, no graph of autograd, no
operator that runs. in_use() says the same of what no count shows.

Thread-safety: any thread. One lock, held while one tensor is read or written.
Fails: a write that fails leaves the tensor as it was; a read that fails raises
and leaves the bytes in the file.
"""

import contextlib
import copy
import os
import threading

import torch
from torch.nn import Parameter

_PLACE = "_stratalloc_place"  # in the __dict__ of a tensor that is away
_NOWHERE = (0,) * 8

# What a meta tensor of the same shape answers as well.
_OF_SHAPES = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in (
        "shape", "ndim", "nbytes", "itemsize")]
    + [getattr(torch.Tensor, name) for name in (
        "size", "stride", "dim", "ndimension", "numel", "nelement",
        "storage_offset", "is_contiguous", "__len__")])
# What is asked of any tensor without a look at its elements or its shape.
_WITHOUT_BYTES = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in (
        "requires_grad", "is_leaf", "grad_fn", "dtype", "device", "layout",
        "is_cuda", "is_sparse", "is_quantized", "is_meta", "grad")]
    + [torch.Tensor.is_floating_point, torch.Tensor.is_complex,
       torch.Tensor.element_size, torch.Tensor.requires_grad_,
       torch.Tensor.grad.__delete__, torch.Tensor.requires_grad.__set__])
_SET_GRAD = torch.Tensor.grad.__set__


class _Place:
    """Where the bytes of one tensor are; its part of the file ends with it."""

    __slots__ = ("file", "ticket", "shape", "plain", "bytes")

    def __init__(self, file, tensor):
        self.file = file
        self.shape = torch.empty_strided(tensor.size(), tensor.stride(),
                                         dtype=tensor.dtype, device="meta")
        self.plain = type(tensor)
        self.bytes = tensor.untyped_storage().nbytes()
        self.ticket = None
        self.ticket = file.write(tensor.untyped_storage())

    def __del__(self):
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            try:
                self.file.free(ticket)
            except Exception:  # pylint: disable=broad-except
                pass  # the file was closed, or the interpreter ends


class _Away:
    """What a tensor's class is put in front of while its bytes are away."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _WITHOUT_BYTES or (func == _SET_GRAD and args[1] is None):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _OF_SHAPES:
            place = args[0].__dict__.get(_PLACE)
            if place is not None:  # not brought back meanwhile
                return func(place.shape, *args[1:], **kwargs)
        with in_use(_tensors((args, kwargs))):
            return func(*args, **kwargs)

    def __deepcopy__(self, memo):
        with in_use([self]):
            return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol):
        with in_use([self]):
            return self.__reduce_ex__(protocol)


class _AwayParameter(_Away, Parameter):
    pass


class _AwayTensor(_Away, torch.Tensor):
    pass


_CLASSES = {Parameter: _AwayParameter, torch.Tensor: _AwayTensor}
_lock = threading.RLock()
_uses = {}  # id of a tensor in use -> how often


def _after_fork():
    global _lock
    _lock = threading.RLock()  # a thread that is gone may have held it
    _uses.clear()


os.register_at_fork(after_in_child=_after_fork)


def is_away(tensor):
    return isinstance(tensor, _Away)


def bytes_away(tensor):
    """Bytes of it in a spill file."""
    with _lock:
        place = tensor.__dict__.get(_PLACE)
        return 0 if place is None else place.bytes


@contextlib.contextmanager
def in_use(tensors):
    """Brings `tensors` back; none of them leaves until the block ends."""
    tensors = list(tensors)
    begun = 0
    try:
        for tensor in tensors:
            with _lock:
                _uses[id(tensor)] = _uses.get(id(tensor), 0) + 1
                begun += 1
                restore(tensor)
        yield
    finally:
        with _lock:
            for tensor in tensors[:begun]:
                left = _uses[id(tensor)] - 1
                if left:
                    _uses[id(tensor)] = left
                else:
                    del _uses[id(tensor)]


def offload(tensor, file):
    """Bytes that left memory for `file`; 0 if it has to stay.

    Raises what the file raises where it has no room."""
    with _lock:
        if not _may_leave(tensor):
            return 0
        place = _Place(file, tensor)
        nothing = torch.empty(_NOWHERE, dtype=tensor.dtype)
        tensor.__dict__[_PLACE] = place
        tensor.data = nothing
        tensor.__class__ = _CLASSES[place.plain]
        return place.bytes


def restore(tensor):
    """Bytes that came back; 0 if they were there."""
    with _lock:
        place = tensor.__dict__.get(_PLACE)
        if place is None:
            return 0
        with torch._C.DisableTorchFunctionSubclass():
            back = torch.empty_strided(
                place.shape.size(), place.shape.stride(), dtype=tensor.dtype)
            place.file.read(place.ticket, back.untyped_storage())
            tensor.data = back
        tensor.__class__ = place.plain
        del tensor.__dict__[_PLACE]
        return place.bytes


def _may_leave(tensor):
    if type(tensor) not in _CLASSES or id(tensor) in _uses:
        return False
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False
    if tensor.is_quantized or torch._is_functional_tensor(tensor):
        return False
    if not tensor.is_leaf or tensor.is_shared() or tensor.is_conj():
        return False
    whole = tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    if whole == 0 or whole != storage.nbytes() or tensor.storage_offset() != 0:
        return False
    # Python's object holds the tensor, which holds the storage; so does the
    # storage's own object, which was asked for just now.
    return (tensor._use_count() == 1
            and torch._C._storage_Use_Count(storage._cdata) == 2)


def _tensors(value):
    """The tensors that are away among a call's arguments."""
    if isinstance(value, _Away):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _tensors(one)
