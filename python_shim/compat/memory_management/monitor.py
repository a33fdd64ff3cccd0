# SPDX-License-Identifier: Apache-2.0
"""MemoryMonitor: how full the GPUs, the host and the disk cache are, asked now.

It keeps nothing and has no thread: MemoryManager asks it, and so may anybody.
Thread-safety: any thread. Never calls CUDA and waits for no copy, so asking
every few milliseconds disturbs nobody. Fails: never; what is not there has 0.
"""

import dataclasses

from stratalloc.compat._package import core as _core, state as _state

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Usage:
    """Bytes in use and bytes there are."""

    used: int
    total: int

    @property
    def ratio(self):
        """used / total, from 0; 0 where there is nothing."""
        return self.used / self.total if self.total else 0.0


class MemoryMonitor:
    """Usage by tier, as one manager's config counts it."""

    def __init__(self, config):
        self.config = config

    def gpus(self):
        """{index: Usage} of the GPUs that this process has opened.

        Used is what PyTorch has allocated there. What is evicted is not on the
        device, and what is cached is nobody's. Total is what this process may
        have: the card, or less by gpu_limit, a memory fraction or vram_cap_gb.
        """
        found = {}
        for index, (used, total) in (
                _ours() if _state.is_enabled() else _torchs()):
            cap = self.config.vram_cap_gb
            if cap is not None:
                total = min(total, int(cap * GIB))
            found[index] = Usage(used, total)
        return found

    def gpu(self):
        """Usage of the GPU that is fullest."""
        return max(self.gpus().values(), key=lambda usage: usage.ratio,
                   default=Usage(0, 0))

    def cpu(self):
        """Usage of the machine's memory, or of the container's."""
        total, available = _core.host_memory()
        if total is None or available is None:
            return Usage(0, total or 0)
        return Usage(max(total - available, 0), total)

    def disk(self, used):
        """Usage of max_disk_usage_gb, of which `used` bytes are taken."""
        return Usage(used, int(self.config.max_disk_usage_gb * GIB))


def _ours():
    for index in range(_core.device_count()):
        values, _ = _core.metrics(index)
        if values.opened:
            yield index, (values.allocated, values.limit or values.capacity)


def _torchs():
    import torch

    if not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(index):
            yield index, (
                torch.cuda.memory_allocated(index),
                torch.cuda.get_device_properties(index).total_memory)
