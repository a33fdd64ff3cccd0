# SPDX-License-Identifier: Apache-2.0
"""A call that uses tensors past torch's dispatcher, entered as an operator.

The op guard sees operators. A function that hands data pointers to a library
by itself is entered here by hand: the bytes of its operands are brought back,
they and what it allocates stay on the device until it returns.

Any thread; nests with other calls and with operators. Waiting for copies and
for room happens without the GIL (ctypes releases it). The tensors must be
referenced by the caller as long as the block runs.
"""

import contextlib
import ctypes

from stratalloc import _bridge


@contextlib.contextmanager
def entered(name, reads=(), writes=(), copies=False, streams=()):
    """A block that is one operator `name` (for messages) with these operands.

    `reads` and `writes` are iterables of tensors on any devices; what is none
    is left to the call to refuse. `copies`: what the call allocates are copies
    of the operands, which may leave when these may. `streams`: the
    torch.cuda.Streams that it will run on where that is not the current one of
    their device; None among them is skipped.

    Raises torch.OutOfMemoryError when the operands do not fit their devices at
    once, RuntimeError when bytes cannot be brought back; nothing is held then.
    Does nothing while nothing can be evicted.
    """
    call = _enter(name, reads, writes, copies, streams)
    try:
        yield
    finally:
        _bridge.lib().stratalloc_torch_call_leave(call)


def _enter(name, reads, writes, copies, streams):
    import torch

    written = [t for t in writes if isinstance(t, torch.Tensor)]
    operands = written + [t for t in reads if isinstance(t, torch.Tensor)]
    # _cdata is the address of the C++ tensor: the bridge reads its bytes'
    # place itself, because data_ptr() would copy a copy-on-write tensor.
    addresses = (ctypes.c_void_p * len(operands))(
        *(tensor._cdata for tensor in operands))
    call = ctypes.c_void_p()
    with contextlib.ExitStack() as current:
        for stream in streams or ():
            current.enter_context(torch.cuda.stream(stream))
        _bridge.call("call_enter", name.encode(), addresses, len(operands),
                     len(written), int(copies), ctypes.byref(call))
    return call
