# SPDX-License-Identifier: Apache-2.0
"""memlord's API: bytes allocated and freed by device, by hooks on PyTorch.

    from stratalloc.compat.memlord import MemLord

The page memlord.md beside this package says what is counted and when. Importing
makes ours torch's allocator where that can be done (_enabling.py); without it
everything below works, only what a device has in use is asked elsewhere.

`_objects` finds the storages of what a program names, `_accounts` counts each
once, `_patches` replaces PyTorch's attributes and puts them back, `_creations`
and `_moves` say which, `_handles` ends them; `_strategy`, `_usage` and `_collection` are automatic
collections; `tracker` has the one public class.
"""

from stratalloc.compat import _enabling

_enabling.at_import(
    "memlord", "what a device has in use is NVML's or PyTorch's own number, "
    "and nothing of its memory can be evicted")

# pylint: disable=wrong-import-position
from stratalloc.compat.memlord._creations import SnakeHooks  # noqa: E402
from stratalloc.compat.memlord._moves import TorchMoveHooks  # noqa: E402
from stratalloc.compat.memlord.tracker import MemLord  # noqa: E402

__all__ = ["MemLord", "SnakeHooks", "TorchMoveHooks"]
