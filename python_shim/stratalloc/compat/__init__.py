# SPDX-License-Identifier: Apache-2.0
"""APIs that programs already use, with this allocator below them.

`stratalloc.compat.memory_management`, `.gpu_optimizer` and `.memlord` are thin
layers over tiering, accounting and telemetry. Nobody calls enable() for them:
importing one does, while that can still be done (_enabling.py); later it works
over torch's own allocator, and says what is lost.

Importing this package itself imports nothing else and changes nothing.
"""
