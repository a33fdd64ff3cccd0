# SPDX-License-Identifier: Apache-2.0
"""Collectives of one process, which read tensors past torch's dispatcher.

`install()` wraps the functions of torch._C under torch.cuda.nccl and
torch.nn.parallel.comm that give data pointers to NCCL, so that DataParallel
and everybody else who calls them has the operands on their devices:

  _nccl_reduce, _nccl_all_reduce, _nccl_broadcast, _nccl_all_gather,
  _nccl_reduce_scatter                        one operator each
  _broadcast, _broadcast_out                  one operator each
  _broadcast_coalesced                        one operator per buffer

What a broadcast makes of memory that may leave (DataParallel's replicas of the
parameters) is announced as its copy, and may leave too: without that it would
be taken for activations of the module whose call makes it.

Gathering and scattering are copies by operators, which the guard sees; so are
the collectives of torch.distributed, whose operands it keeps until they are
complete. Of these it cannot see that a process group coalesces and launches
nothing until it stops: _start_coalescing and _end_coalescing are no operators.
They are methods of the class ProcessGroup, which every coalescing manager and
batch_isend_irecv call; wrapped, they tell the bridge.

The wrappers change nothing but that: arguments, results and errors are torch's
own, plus torch.OutOfMemoryError when operands do not fit. They pass on while
nothing can be evicted, and when torch.compile traces them. They stay until the
process ends, as the guard does. Any thread may call them.
"""

import functools

import torch
from torch.compiler import is_compiling

from stratalloc._hooks.foreign_call import entered
from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core

_MARK = "_stratalloc_wrapped"


def install():
    """Wraps the functions of torch._C that this torch has. Idempotent."""
    for name, wrapper in _WRAPPERS.items():
        original = getattr(torch._C, name, None)
        if original is None or hasattr(original, _MARK):
            continue
        setattr(torch._C, name, _passing_on(original, wrapper(original)))
    c10d = getattr(torch._C, "_distributed_c10d", None)  # not in every torch
    if c10d is not None:
        _follow_coalescing(c10d.ProcessGroup)


def _follow_coalescing(group):
    start, end = group._start_coalescing, group._end_coalescing
    if hasattr(start, _MARK):
        return
    _bridge.call("follow_coalescing")
    tell = torch.ops.stratalloc

    # Whether or not anything can be evicted now: something may be, before the
    # group stops.
    @functools.wraps(start)
    def start_coalescing(self, *args, **kwargs):
        if is_compiling():
            return start(self, *args, **kwargs)
        tell.coalescing_begins(self.boxed())
        try:
            return start(self, *args, **kwargs)
        except BaseException:
            tell.coalescing_ends(self.boxed(), None)
            raise

    @functools.wraps(end)
    def end_coalescing(self, *args, **kwargs):
        if is_compiling():
            return end(self, *args, **kwargs)
        work = None
        try:
            work = end(self, *args, **kwargs)
        finally:
            tell.coalescing_ends(
                self.boxed(), None if work is None else work.boxed())
        return work

    setattr(start_coalescing, _MARK, True)
    group._start_coalescing = start_coalescing
    group._end_coalescing = end_coalescing


def _passing_on(original, guarded):
    @functools.wraps(original)
    def function(*args, **kwargs):
        if is_compiling() or not _core.anything_evictable():
            return original(*args, **kwargs)
        return guarded(*args, **kwargs)

    setattr(function, _MARK, True)
    return function


# torch's functions under _nccl_ take positional arguments only.


def _nccl_reduce(original):
    def reduce(inputs, output, root, op, streams, comms):
        with entered("nccl.reduce", inputs, (output,), streams=streams):
            return original(inputs, output, root, op, streams, comms)
    return reduce


def _nccl_all_reduce(original):
    def all_reduce(inputs, outputs, op, streams, comms):
        with entered("nccl.all_reduce", inputs, outputs, streams=streams):
            return original(inputs, outputs, op, streams, comms)
    return all_reduce


def _nccl_broadcast(original):
    def broadcast(inputs, root, streams, comms):
        # In place: all but the root's are written.
        with entered("nccl.broadcast", (), inputs, streams=streams):
            return original(inputs, root, streams, comms)
    return broadcast


def _nccl_all_gather(original):
    def all_gather(inputs, outputs, streams, comms):
        with entered("nccl.all_gather", inputs, outputs, streams=streams):
            return original(inputs, outputs, streams, comms)
    return all_gather


def _nccl_reduce_scatter(original):
    def reduce_scatter(inputs, outputs, op, streams, comms):
        with entered("nccl.reduce_scatter", inputs, outputs, streams=streams):
            return original(inputs, outputs, op, streams, comms)
    return reduce_scatter


def _broadcast(original):
    def broadcast(tensor, devices):
        with entered("comm.broadcast", (tensor,), copies=True):
            return original(tensor, devices)
    return broadcast


def _broadcast_out(original):
    def broadcast_out(tensor, out):
        with entered("comm.broadcast", (tensor,), out):
            return original(tensor, out)
    return broadcast_out


def _broadcast_coalesced(original):
    def broadcast_coalesced(tensors, devices, buffer_size):
        # All at once would be a whole model's parameters, which need not fit.
        # torch copies them through one buffer after the other anyway: given
        # one buffer's worth at a time it does the same.
        results = [[None] * len(tensors) for _ in devices]
        for chunk in _chunks(tensors, buffer_size):
            with entered("comm.broadcast_coalesced",
                         [tensors[i] for i in chunk], copies=True):
                copies = original([tensors[i] for i in chunk], devices,
                                  buffer_size)
            for result, copied in zip(results, copies):
                for i, tensor in zip(chunk, copied):
                    result[i] = tensor
        return results
    return broadcast_coalesced


def _chunks(tensors, limit):
    """Indices of consecutive tensors of up to `limit` bytes, one at least.

    No tensors are one empty chunk: torch says what it thinks of that.
    """
    chunk, total = [], 0
    for i, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size()
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(i)
        total += size
    yield chunk


_WRAPPERS = {
    "_nccl_reduce": _nccl_reduce,
    "_nccl_all_reduce": _nccl_all_reduce,
    "_nccl_broadcast": _nccl_broadcast,
    "_nccl_all_gather": _nccl_all_gather,
    "_nccl_reduce_scatter": _nccl_reduce_scatter,
    "_broadcast": _broadcast,
    "_broadcast_out": _broadcast_out,
    "_broadcast_coalesced": _broadcast_coalesced,
}
