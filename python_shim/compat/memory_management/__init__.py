# SPDX-License-Identifier: Apache-2.0
"""memory_management: modules that leave the GPU while they are not used.

    from stratalloc.compat.memory_management import auto_manage_model

    manager = auto_manage_model(model)
    model.to("cuda")      # may be larger than the card
    model(x)
    manager.cleanup()

A layer over stratalloc.evict() and restore(). Importing it makes ours torch's
allocator, if that can still be done (_enabling.py). What every option and
number means: memory_management.md beside this package.
"""

from stratalloc.compat import _enabling
from stratalloc.compat.memory_management.config import MemoryConfig
from stratalloc.compat.memory_management.manager import (MemoryManager,
                                                         auto_manage_model)
from stratalloc.compat.memory_management.monitor import MemoryMonitor
from stratalloc.compat.memory_management.strategies import OffloadStrategies
from stratalloc.compat.memory_management.wrapper import ModuleWrapper

__all__ = ["MemoryConfig", "MemoryManager", "MemoryMonitor", "ModuleWrapper",
           "OffloadStrategies", "auto_manage_model"]

_enabling.at_import(
    "memory_management",
    "modules on a GPU stay there whatever is asked, and only those in host "
    "memory are offloaded, to disk")
