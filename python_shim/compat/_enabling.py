# SPDX-License-Identifier: Apache-2.0
"""What importing a compat module does to the allocator.

A program that imports one has no call of enable(). So the import makes ours
torch's allocator if that can be done: CUDA is not initialised and no other
allocator was chosen. Where it cannot, the module works over what is there, and
one warning of the logger "stratalloc" says why and what is lost. On a machine
without a GPU there is nothing to own: no warning, and CUDA is not asked.

Any thread may import; enable() has its own lock. Fails only with
STRATALLOC_STRICT=1, as enable() does.
"""

import logging

_log = logging.getLogger("stratalloc")
_said = set()  # modules that have said what is lost


def at_import(module, lost):
    """Makes ours torch's allocator for the sake of `module`, if that can be.

    Args:
      module: its name as a user knows it: "memlord".
      lost: what it cannot do without ours, as the end of a sentence: "freed
        bytes are those of Python's finalizers alone".

    Returns: True if the allocator is ours afterwards.
    """
    import torch

    from stratalloc.compat._package import (_enable, gpus as _gpus,
                                            state as _state)

    if _state.is_enabled():
        return True
    if _gpus.why_none(torch) is not None:
        return False
    try:
        if not _state.forbidden():
            return _enable.enable()
        reason = "STRATALLOC=0 in the environment"
    except (RuntimeError, ValueError) as error:
        if _enable.strict():
            raise
        reason = " ".join(str(error).removeprefix("stratalloc: ").split())
    if module not in _said:
        _said.add(module)
        _log.warning(
            "stratalloc: %s works over torch's own allocator, so %s; the "
            "reason: %s", module, lost, reason)
    return False
