# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory whose bytes are in a spill file until they are used.

Where there is no GPU this is how modules are offloaded: offload() writes a
tensor's bytes to a _spill.SpillFile and lets its memory go. The tensor object
stays. From watch() on its class is one with a __torch_function__: whatever is
called with it is counted as a use until it returns, and brings the bytes back,
into new memory, before it runs. So state_dict(), deepcopy, pickle, an
optimizer's step and a direct use need nothing of their own, and nothing leaves
under an operator, whichever thread runs it.

While it is away the tensor has its shape and strides, and a storage without
memory. PyTorch raises at each access to that storage, with the message of
_refusal(). So code that does not pass Python's functions (torch.func,
TorchScript, C++) fails there and reads no wrong value. Integers, booleans and
single numbers stay in memory. So does what somebody else holds: a view, an
alias, a graph of autograd.

Thread-safety: any thread. One lock, held while one tensor is read or written.
Fails: a write that fails leaves the tensor as it was; a read that fails raises
and leaves the bytes in the file, which lives as long as something is in it.
"""

import contextlib
import copy
import os
import threading
import weakref

import torch
from torch.nn import Parameter
from torch.utils._python_dispatch import _disable_current_modes

from stratalloc.compat.memory_management import _earlier

_WATCH = "_stratalloc_watch"  # in the __dict__ of a tensor that is watched

# What a meta tensor with the same strides answers as well.
_OF_STRIDES = frozenset([getattr(torch.Tensor, name) for name in (
    "stride", "storage_offset", "is_contiguous")])
# What is asked of any tensor without a look at its elements.
_WITHOUT_BYTES = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in (
        "shape", "ndim", "nbytes", "itemsize", "requires_grad", "is_leaf",
        "grad_fn", "dtype", "device", "layout", "is_cuda", "is_sparse",
        "is_quantized", "is_meta", "grad")]
    + [getattr(torch.Tensor, name) for name in (
        "size", "dim", "ndimension", "numel", "nelement", "__len__",
        "is_floating_point", "is_complex", "element_size", "requires_grad_")]
    + [torch.Tensor.grad.__delete__, torch.Tensor.requires_grad.__set__])
_SET_GRAD = torch.Tensor.grad.__set__
_plainly = torch._C.DisableTorchFunctionSubclass


class _Place:
    """Where the bytes of one tensor are; its part of the file ends with it."""

    __slots__ = ("file", "ticket", "shape", "bytes")

    def __init__(self, file, tensor):
        self.ticket = None
        self.file = file
        self.shape = torch.empty_strided(tensor.size(), tensor.stride(),
                                         dtype=tensor.dtype, device="meta")
        self.bytes = tensor.untyped_storage().nbytes()
        self.ticket = file.write(tensor.untyped_storage())

    def __del__(self):
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            try:
                self.file.free(ticket)
            except Exception:  # pylint: disable=broad-except
                pass  # in the child of a fork, or the interpreter ends


class _Watch:
    """owner: weak, who watches it. threads: where others were when that began
    and have to leave (_earlier.py). place: None while it is in memory."""

    __slots__ = ("owner", "threads", "place")

    def __init__(self, owner, threads):
        self.owner = weakref.ref(owner)
        self.threads = threads
        self.place = None


class _Watched:
    """What a tensor's class is put in front of while it is watched."""

    @classmethod
    @torch.compiler.disable
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _WITHOUT_BYTES or (func == _SET_GRAD and args[1] is None):
            with _plainly():
                return func(*args, **kwargs)
        if func in _OF_STRIDES:
            place = _place(args[0])
            if place is not None:  # not brought back meanwhile
                return func(place.shape, *args[1:], **kwargs)
        with in_use(_tensors((args, kwargs))):
            # Other subclasses are asked, as torch would without this one.
            others = tuple(one for one in types
                           if not issubclass(one, _Watched))
            for one in others:
                result = one.__torch_function__(func, others, args, kwargs)
                if result is not NotImplemented:
                    return result
            if others:
                return NotImplemented
            with _plainly():
                return func(*args, **kwargs)

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        with in_use([self]):
            made = memo[id(self)] = copy.deepcopy(_plain_alias(self), memo)
            return made

    def __repr__(self, **options):
        with in_use([self]):
            return _plain_alias(self).__repr__(**options)

    def __reduce_ex__(self, protocol):
        with in_use([self]):
            return _plain_alias(self).__reduce_ex__(protocol)


class _WatchedParameter(_Watched, Parameter):
    pass


class _WatchedTensor(_Watched, torch.Tensor):
    pass


_CLASSES = {Parameter: _WatchedParameter, torch.Tensor: _WatchedTensor}
_PLAIN = {watched: plain for plain, watched in _CLASSES.items()}
_lock = threading.RLock()
_uses = {}  # id of a tensor in use -> how often


def _after_fork():
    global _lock
    _lock = threading.RLock()  # a thread that is gone may have held it


os.register_at_fork(after_in_child=_after_fork)


def _place(tensor):
    watch = tensor.__dict__.get(_WATCH)
    return None if watch is None else watch.place


def is_away(tensor):
    return _place(tensor) is not None


def bytes_away(tensor):
    """Bytes of it in a spill file."""
    place = _place(tensor)
    return 0 if place is None else place.bytes


class in_use(contextlib.AbstractContextManager):
    """Brings tensors back; none of them leaves until the block ends."""

    def __init__(self, tensors):
        self._tensors = list(tensors)
        self._begun = 0

    def __enter__(self):
        try:
            for tensor in self._tensors:
                with _lock:
                    _uses[id(tensor)] = _uses.get(id(tensor), 0) + 1
                    self._begun += 1
                    restore(tensor)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with _lock:
            for tensor in self._tensors[:self._begun]:
                left = _uses[id(tensor)] - 1
                if left:
                    _uses[id(tensor)] = left
                    continue
                del _uses[id(tensor)]
                watch = tensor.__dict__.get(_WATCH)
                if watch is not None and _is_over(watch.owner()):
                    unwatch(tensor)
            self._begun = 0


def watch(tensors, owner, modules=()):
    """From now on each use of these that can leave is seen.

    `owner` is held weakly, and its `bytes_read` grows; when it is gone, or its `closed` is true, a tensor
    is a plain one again after its next use. `modules` are those that are known
    to have them."""
    with _lock:
        new = []
        for tensor in tensors:
            if _WATCH in tensor.__dict__:
                tensor.__dict__[_WATCH].owner = weakref.ref(owner)
            elif _could_leave(tensor):
                tensor.__dict__[_WATCH] = _Watch(owner, {})
                tensor.__class__ = _CLASSES[type(tensor)]
                new.append(tensor)
        if new:
            del tensor  # one reference more
            unused, threads = _earlier.none_of(new, modules)
            for i, free in enumerate(unused):
                if not free:
                    new[i].__dict__[_WATCH].threads = threads


def unwatch(tensor):
    """It is back, and a plain tensor again. Raises what restore() raises."""
    with _lock:
        if _WATCH in tensor.__dict__:
            restore(tensor)
            tensor.__class__ = _PLAIN.get(type(tensor), type(tensor))
            del tensor.__dict__[_WATCH]


def offload(tensor, file, owner):
    """Bytes that left memory for `file`; 0 if it has to stay.

    Raises what the file raises where it has no room."""
    with _lock:
        watch([tensor], owner)
        with _plainly():
            return _offload(tensor, file)


def _offload(tensor, file):
    state = tensor.__dict__.get(_WATCH)
    if (state is None or state.place is not None or id(tensor) in _uses
            or not _may_leave(tensor)):
        return 0
    if state.threads:
        state.threads = _earlier.still(state.threads)
        if state.threads:
            return 0
    with _alone():
        state.place = _Place(file, tensor)
        try:
            tensor.data = _without_memory(tensor)
        except BaseException:
            state.place = None
            raise
        return state.place.bytes


def restore(tensor):
    """Bytes that came back; 0 if they were there."""
    if _WATCH not in tensor.__dict__:
        return 0
    with _lock:
        place = _place(tensor)
        if place is None:
            return 0
        with _plainly(), _alone():
            back = torch.empty_strided(
                place.shape.size(), place.shape.stride(), dtype=tensor.dtype,
                device="cpu")
            place.file.read(place.ticket, back.untyped_storage())
            tensor.data = back
        watch_ = tensor.__dict__[_WATCH]
        watch_.place = None
        owner = watch_.owner()
        if owner is not None:
            owner.bytes_read += place.bytes
        return place.bytes


@contextlib.contextmanager
def _alone():
    """Tensors made here are what they would be outside of every mode."""
    with (torch._C._DisableFuncTorch(), _disable_current_modes(),
          torch._C.DisableTorchFunction(), torch.inference_mode(False)):
        yield


def _without_memory(tensor):
    """A tensor of the same size, strides and dtype whose storage has no memory;
    any access to that storage raises RuntimeError."""
    storage = torch._C._construct_storage_from_data_pointer(
        0, tensor.device, tensor.untyped_storage().nbytes())
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, 0, tensor.size(), tensor.stride())
    # Last: from here on set_() raises, too.
    torch._C._set_storage_data_ptr_access_error_msg(
        storage._cdata, _refusal(tensor))
    return made


def _refusal(tensor):
    return (f"stratalloc: a tensor of shape {tuple(tensor.size())} has no "
            "memory: its MemoryManager offloaded it to a file, and the code "
            "that uses it (TorchScript, torch.func, a collective or other C++) "
            "cannot bring it back; call load_all() of its module before, or "
            "cleanup() of the manager")


def _has_values(tensor):
    """Integers and booleans are counters and indices: they stay."""
    return tensor.is_floating_point() or tensor.is_complex()


def _could_leave(tensor):
    return (type(tensor) in _CLASSES and tensor.device.type == "cpu"
            and tensor.layout == torch.strided and not tensor.is_quantized
            and tensor.is_leaf and not tensor.is_inference()
            and _has_values(tensor))


def _may_leave(tensor):
    if type(tensor) not in _PLAIN or torch._is_functional_tensor(tensor):
        return False
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return False  # by `.data = `
    if not tensor.is_leaf or tensor.is_shared() or tensor.is_conj():
        return False
    if tensor.is_neg() or not _has_values(tensor):
        return False
    if tensor.numel() < 2:  # a single number is not worth a record in a file
        return False
    whole = tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    if whole != storage.nbytes() or tensor.storage_offset() != 0:
        return False
    if not storage.resizable():
        return False  # it is somebody else's, or NumPy has its address
    # Python's object holds the tensor, which holds the storage; so does the
    # storage's own object, which was asked for just now.
    return (tensor._use_count() == 1
            and torch._C._storage_Use_Count(storage._cdata) == 2)


def _is_over(owner):
    return owner is None or owner.closed


def _plain_alias(tensor):
    """A tensor of its own class in the same memory, while it is in use."""
    with _plainly():
        plain = tensor.detach()
        if isinstance(tensor, Parameter):
            plain = Parameter(plain, tensor.requires_grad)
        else:
            plain.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            plain.grad = tensor.grad
    plain.__dict__.update((name, value)
                          for name, value in tensor.__dict__.items()
                          if name != _WATCH)
    return plain


def _tensors(value):
    """The tensors that are watched among a call's arguments."""
    if isinstance(value, _Watched):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _tensors(one)
