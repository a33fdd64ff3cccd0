# SPDX-License-Identifier: Apache-2.0
"""Whether stratalloc is this process's CUDA allocator, and why not.

Below every module that asks; enable() sets `active`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stratalloc._native import bridge as _bridge
from stratalloc._native import core as _core
from stratalloc._native.errors import NotEnabledError

if TYPE_CHECKING:
    from stratalloc.settings import Config

active: Config | None = None  # the resolved Config that the core has; None before enable()
asked: Config | None = None  # the same before its open settings got their defaults
tiering_ended = False  # by disable(), for the rest of the process


def config() -> Config:
    """The active Config with every default filled in, sizes in bytes.

    Raises NotEnabledError before enable().
    """
    if active is None:
        raise NotEnabledError(why_not_enabled())
    return active


def is_enabled() -> bool:
    """True if stratalloc is PyTorch's CUDA allocator in this process."""
    return _bridge.loaded() and _bridge.is_current()


def forbidden():
    """True if STRATALLOC=0 in the environment keeps PyTorch's allocator."""
    return os.environ.get("STRATALLOC") == "0"


def require():
    """Raises NotEnabledError where questions about memory have no answer.

    From enable() to the first use of CUDA the answer is that nothing is held.
    An allocator that was handed to torch but is not in use yet counts too.
    """
    if _core.initialized() or is_enabled():
        return
    torch = sys.modules.get("torch")
    if active is None or torch is None or torch.cuda.is_initialized():
        raise NotEnabledError(why_not_enabled())


def why_not_enabled():
    """The one text of every question before enable()."""
    if forbidden():
        return ("stratalloc: not enabled: STRATALLOC=0 in the environment keeps "
                "PyTorch's allocator; unset it, or run without "
                "`--allocator native`, which sets it")
    if active is not None:
        return ("stratalloc: not enabled: another CUDA allocator took its "
                "place; remove the call that installs it "
                "(change_current_allocator)")
    return ("stratalloc: not enabled: call stratalloc.enable() before the first "
            "use of CUDA, or start the program with STRATALLOC=1 or "
            "`stratalloc run`")
