# SPDX-License-Identifier: Apache-2.0
"""What is known, found out and written when a program is out of memory."""

from stratalloc._oom.hook import OomCallback, on_oom

__all__ = ["OomCallback", "on_oom"]
