# SPDX-License-Identifier: Apache-2.0
"""The torch.backends entry point: torch calls `autoload` while it is imported.

Does nothing unless STRATALLOC=1, but for a note of who initialises CUDA, should
stratalloc.enable() come too late. An exception of an entry point would break
the user's `import torch`, so whatever keeps us from enabling is one line on
stderr and the native allocator stays; STRATALLOC_STRICT=1 raises instead.

Every `import torch` beside an installed stratalloc runs this, so what the rest
needs is imported when it is needed: here are names of Python's start alone.

leave_to_caller() keeps it quiet where the caller enables later, by hand.
STRATALLOC=0 would forbid that call, too.
"""

import os
import sys

_left_to_caller = False
_noted = False


def leave_to_caller():
    """From here on the entry point enables nothing in this process: the caller
    does, when the simulated device is loaded."""
    global _left_to_caller
    _left_to_caller = True


def note_initialization():
    """Has torch note which line initialises CUDA, once, if torch is imported
    and CUDA is not initialised."""
    global _noted
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    queue = getattr(cuda, "_lazy_call", None)
    if _noted or queue is None or cuda.is_initialized():
        return
    _noted = True
    queue(_note)


def _note():
    from stratalloc._hooks import witness as _witness

    _witness.note()


def autoload():
    note_initialization()
    if _left_to_caller or os.environ.get("STRATALLOC", "0") in ("", "0"):
        return
    from stratalloc import _enable
    from stratalloc._recording import record as _record

    try:
        if os.environ["STRATALLOC"] != "1":
            raise ValueError(
                f"stratalloc: STRATALLOC={os.environ['STRATALLOC']!r} is "
                "neither 0 nor 1")
        if _enable.enable(_record.inherited(None)):
            from stratalloc._live import last_line as _last_line

            _last_line.tell_at_exit()
    except Exception as error:  # pylint: disable=broad-except
        if _enable.strict():
            raise
        text = " ".join(str(error).split())
        if not text.startswith("stratalloc:"):
            text = f"stratalloc: {type(error).__name__}: {text}"
        print(f"{text}; torch's native allocator stays", file=sys.stderr)
