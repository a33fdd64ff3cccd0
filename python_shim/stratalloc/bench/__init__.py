# SPDX-License-Identifier: Apache-2.0
"""`stratalloc bench`: what the allocator costs, against torch's own.

`worker` measures single rounds, ours and its baseline one after the other, in
a process of its own; `main` asks for them and writes medians with their
spread.
"""
