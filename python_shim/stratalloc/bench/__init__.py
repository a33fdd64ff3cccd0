# SPDX-License-Identifier: Apache-2.0
"""`stratalloc bench`: what the allocator costs, against torch's own.

`worker` measures one round of one thing in a process of its own; `main` asks
workers in turn, so that ours and the baseline see the same machine, and
writes medians with their spread.
"""
