# SPDX-License-Identifier: Apache-2.0
"""What a program tells PyTorch's allocator, heard when it is said.

`install()` replaces torch._C._accelerator_setAllocatorSettings, which
torch.cuda.memory._set_allocator_settings calls too. Torch keeps one value for
`expandable_segments:False` and for saying nothing, and of what was said the
last text only: so the bridge reads each one.
"""

import torch

from stratalloc import _bridge
from stratalloc._replaced import installed, passing_on


def _replace(hooks):
    hooks.replace(torch._C, "_accelerator_setAllocatorSettings", _set)


install, uninstall = installed(_replace)


def _set(original):
    def _accelerator_setAllocatorSettings(env):
        original(env)
        _bridge.lib().stratalloc_torch_note_settings()

    return passing_on(original, _accelerator_setAllocatorSettings)
