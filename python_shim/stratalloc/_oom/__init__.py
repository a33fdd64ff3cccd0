# SPDX-License-Identifier: Apache-2.0
"""What is known, found out and written when a program is out of memory."""

from stratalloc._oom.hook import on_oom

__all__ = ["on_oom"]
