# SPDX-License-Identifier: Apache-2.0
"""APIs that programs already use, with this allocator below them.

`stratalloc.compat.memory_management`, `.gpu_optimizer` and `.memlord` are thin
layers over tiering, accounting and telemetry. Nobody calls enable() for them:
importing one does, while that can still be done (_enabling.py); later it works
over torch's own allocator, and says what is lost.

    stratalloc.compat.install()
    from memlord import MemLord     # stratalloc.compat.memlord.MemLord

Importing this package itself imports _names.py alone and changes nothing.
"""

from stratalloc.compat._names import install, uninstall

__all__ = ["install", "uninstall"]
