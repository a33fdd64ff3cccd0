# SPDX-License-Identifier: Apache-2.0
"""The line of user code that this thread runs, as "file:line".

The first frame, innermost first, that lies in no library, as
_ownership/sites.py has it: so of `train.py` and what it calls in packages,
train.py's line. Of a file below the directory where this began, the rest of the
path.
"""

import functools
import os
import sys

import torch

from stratalloc.compat._package import sites as _sites

NOBODY = "(no user code)"


def here():
    frame = sys._getframe(1)
    while frame is not None:
        name = _shown(frame.f_code.co_filename)
        if name is not None:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return NOBODY


@functools.cache
def _libraries():
    return tuple(os.path.join(each, "") for each in _sites.libraries(torch)), (
        os.path.join(os.getcwd(), ""))


@functools.lru_cache(maxsize=4096)
def _shown(name):
    """What a file is called; None: it is a library's."""
    libraries, started = _libraries()
    if name.startswith(libraries) or name.startswith("<frozen "):
        return None
    return name.removeprefix(started)
