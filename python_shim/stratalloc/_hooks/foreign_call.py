# SPDX-License-Identifier: Apache-2.0
"""A call that uses tensors past torch's dispatcher, entered as an operator.

The op guard sees operators. A function that hands data pointers to a library
by itself is entered here by hand: the bytes of its operands are brought back,
they and what it allocates stay on the device until it returns.

Any thread; nests with other calls and with operators. Waiting for copies and
for room happens without the GIL. The tensors must be referenced by the caller
as long as the block runs.
"""

import contextlib
import ctypes

from stratalloc._native import _foreign
from stratalloc._native import bridge as _bridge

# enter(name, reads, writes, copies, function), leave(call) and
# call(name, reads, writes, function, callable, args, kwargs): see the module.
enter = _foreign.enter
leave = _foreign.leave
call = _foreign.call


def bind(torch):
    """Gives the extension the loaded bridge and torch's types. Idempotent."""
    lib = _bridge.lib()
    _foreign.bind(
        *(ctypes.cast(function, ctypes.c_void_p).value for function in (
            lib.stratalloc_torch_call_enter, lib.stratalloc_torch_call_leave)),
        torch.Tensor, torch.OutOfMemoryError, torch.nn.Parameter,
        torch._C.DisableTorchFunction,
        torch._C._is_torch_function_mode_enabled)


@contextlib.contextmanager
def entered(name, reads=(), writes=(), copies=False, streams=()):
    """A block that is one operator `name` (for messages) with these operands.

    `reads` and `writes` are lists or tuples of tensors on any devices; what is
    none is left to the call to refuse. `copies`: what the call allocates are
    copies of the operands, which may leave when these may. `streams`: the
    torch.cuda.Streams that it will run on where that is not the current one of
    their device; None among them is skipped.

    Raises torch.OutOfMemoryError when the operands do not fit their devices at
    once, RuntimeError when bytes cannot be brought back; nothing is held then.
    Does nothing while nothing can be evicted.
    """
    with contextlib.ExitStack() as current:
        if streams:
            import torch

            for stream in streams:
                current.enter_context(torch.cuda.stream(stream))
        call = enter(name, _listed(reads), _listed(writes), copies, False)
    try:
        yield
    except RuntimeError as error:
        told = leave(call)
        if told is not None and str(error).startswith(told):
            import torch

            # Inside it was no want of memory: nobody must go on without the
            # operands (bridge_error.h).
            raise torch.OutOfMemoryError(told) from error
        raise
    except BaseException:
        leave(call)
        raise
    leave(call)


def _listed(tensors):
    return tensors if isinstance(tensors, (list, tuple)) else list(tensors)
