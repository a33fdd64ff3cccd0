# SPDX-License-Identifier: Apache-2.0
"""Registration of user buffers by NCCL, off where it cannot work with ours.

NCCL registers the buffers of collectives that a CUDA graph captures
(NCCL_GRAPH_REGISTER, on by default). It takes each buffer for a part of one
allocation. A block of ours may lie in several physical handles, as in torch's
expandable segments: one rank then gives up the registration and another waits
for it (pytorch issue 158029, torchtitan issue 3306). A registration also names
physical memory, which another page may have after an eviction
(torch_memory_saver issue 88). So enable() sets the variable to 0, unless the
user has set it. NCCL reads it when a communicator is made.

TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK registers whole segments as they
are allocated. Ours grow later, so that it registers a part: a warning.

Thread-safety: under enable()'s lock.
Lifetime: the variable stays for the process and its children.
Errors: none.
"""

import logging
import os

_log = logging.getLogger("stratalloc")

_GRAPHS = "NCCL_GRAPH_REGISTER"
_SEGMENTS = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"


def prepare(environ: dict[str, str] | os._Environ[str] = os.environ) -> None:
    """Sets what NCCL reads, and warns of what cannot work; once a process.

    Args:
      environ: another environment than this process's, for tests.
    """
    if _GRAPHS not in environ:
        environ[_GRAPHS] = "0"
        _log.info("stratalloc: %s=0: NCCL does not register buffers of ours in "
                  "CUDA graphs; set it yourself to decide otherwise", _GRAPHS)
    if environ.get(_SEGMENTS, "0").lower() in ("1", "true", "yes", "y", "on"):
        _log.warning(
            "stratalloc: %s registers segments with NCCL when they are "
            "allocated, and segments of ours grow afterwards: collectives on "
            "such memory may fail; unset it", _SEGMENTS)
