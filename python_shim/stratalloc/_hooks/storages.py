# SPDX-License-Identifier: Apache-2.0
"""Methods of storages that copy bytes past torch's dispatcher.

`install()` replaces torch.UntypedStorage.resize_, which copies what the old and
the new memory have in common. TypedStorage.resize_ calls it. The other methods
that touch bytes (copy_, fill_, indexing, pickling) are operators, and
Tensor.resize_ is one: the guard sees them.

The old bytes are brought back, and they and the new memory stay until the call
returns. A call that copies nothing, since one of the two sizes is 0, brings
nothing back: FSDP frees and makes its parameters so. Raises
torch.OutOfMemoryError when the bytes do not fit; the storage is then as it was.
"""

import torch
from torch.compiler import is_compiling
from torch.utils._python_dispatch import _disable_current_modes

from stratalloc._hooks.foreign_call import entered
from stratalloc._hooks.patching import installed, passing_on
from stratalloc._native import core as _core


def _replace(hooks):
    hooks.replace(torch.UntypedStorage, "resize_", _resize)


install, uninstall = installed(_replace)


def _resize(original):
    def resize_(self, *args, **kwargs):
        if (is_compiling() or not _core.anything_evictable()
                or self.device.type != "cuda" or not self.nbytes()
                or not any(args)):
            return original(self, *args, **kwargs)
        with entered("UntypedStorage.resize_", (), (_bytes_of(self),),
                     copies=True):
            return original(self, *args, **kwargs)

    return passing_on(original, resize_)


def _bytes_of(storage):
    """A tensor of uint8 over the whole storage, made unseen by any mode."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=torch.uint8,
                           device=storage.device).set_(storage)
