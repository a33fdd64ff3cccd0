# SPDX-License-Identifier: Apache-2.0
"""Remembers which line initialised CUDA, for the message of a late enable().

torch runs queued calls inside its initialisation, so the stack above such a
call is the answer. `_autoload` queues it while CUDA is not initialised; nothing
is known otherwise, and nothing is ever patched.
"""

import os
import sys

_line = None


def line():
    """"script.py:12 (in main)", or None if nobody saw it."""
    return _line


def by_whom():
    """", by script.py:12 (in main)": who initialised CUDA, if that was seen."""
    return f", by {_line}" if _line else ""


def note():
    """Called by torch's initialisation of CUDA, by way of `_autoload`."""
    global _line
    inside = tuple(
        os.path.dirname(os.path.abspath(sys.modules[name].__file__)) + os.sep
        for name in ("torch", "stratalloc"))
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not os.path.abspath(code.co_filename).startswith(inside):
            _line = (f"{os.path.basename(code.co_filename)}:{frame.f_lineno} "
                     f"(in {code.co_name})")
            return
        frame = frame.f_back
