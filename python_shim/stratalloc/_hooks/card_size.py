# SPDX-License-Identifier: Apache-2.0
"""Size of the card under `gpu_limit`, for libraries that plan by it.

`gpu_limit` stands for a smaller card, so torch.cuda.mem_get_info(),
torch.cuda.cudart().cudaMemGetInfo() and torch.accelerator.get_memory_info()
answer as that card would: `total` is the limit, `free` is what of it this
process has not reserved, and never more than the driver has. Without the
setting they answer as ever. torch.cuda.get_device_properties() describes the
hardware, as under a memory fraction of PyTorch. The memory fraction is taken of
this `total`, as under PyTorch's allocator.

transformers' warm-up of the caching allocator is skipped under the setting: its
size is the card's less 1.2 GiB, which is negative on a smaller one, and memory
that comes in pages needs no warm-up.

Thread-safety: as the replaced functions; use() under enable()'s lock.
"""

import torch

from stratalloc._hooks.patching import installed, passing_on


def _replace(hooks):
    cudart = getattr(torch._C, "_cudart", None)  # none in builds for the CPU
    if cudart is not None:
        hooks.replace(cudart, "cudaMemGetInfo", _limited)
    hooks.replace(torch._C, "_accelerator_getMemoryInfo", _limited)
    hooks.when_imported(
        "transformers.modeling_utils", lambda module: hooks.replace(
            module, "caching_allocator_warmup", _skipped))


install, uninstall = installed(_replace)
_limit = 0


def use(gpu_limit):
    """The setting from now on; 0: the card's own size."""
    global _limit
    _limit = gpu_limit
    if gpu_limit:
        install()


def _skipped(original):
    def caching_allocator_warmup(*args, **kwargs):
        return None if _limit else original(*args, **kwargs)

    return passing_on(original, caching_allocator_warmup)


def _limited(original):
    def memory_info(device):
        free, total = original(device)
        if not 0 < _limit < total:
            return free, total
        left = _limit - torch.cuda.memory_reserved(device)
        return max(0, min(free, left)), _limit

    return passing_on(original, memory_info)
