# SPDX-License-Identifier: Apache-2.0
"""Options of PyTorch's allocator, read when the program sets them.

`install()` reads the environment and replaces
torch._C._accelerator_setAllocatorSettings, which
torch.cuda.memory._set_allocator_settings calls too. Torch keeps one value for
`expandable_segments:False` and for no value, and of all texts the last alone: so
the bridge reads each one.

An option that has no effect here is one line of the log, once in a process
(torch_bridge/OPTIONS.md has each option).
"""

import logging
import os
import re

import torch

from stratalloc._hooks.patching import installed, passing_on
from stratalloc._native import bridge as _bridge

_log = logging.getLogger("stratalloc")
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
              "PYTORCH_HIP_ALLOC_CONF")
_OPTION = re.compile(r"(?:^|,)\s*([a-z0-9_]+)\s*:\s*([^,\s]+)")

_ON_MAPPED = " on a GPU with virtual memory management: "
_BLOCKS_SPLIT = (_ON_MAPPED + "blocks are split, and free parts are mapped "
                 "elsewhere; remove it, or set expandable_segments:False")
_SPACE_RESERVED = (": address space for the whole card is reserved once; "
                   "remove it")
# option -> where and why it has no effect, and what to do.
NO_EFFECT = {
    "graph_capture_record_stream_reuse":
        ": blocks with recorded streams that are freed during a capture stay "
        "until it ends; call no record_stream() in the capture, or set "
        "TORCH_NCCL_AVOID_RECORD_STREAMS=1 for collectives",
    "release_lock_on_cudamalloc":
        ": cudaMalloc is never called under the lock; remove it",
    "expandable_segments_reserve": _SPACE_RESERVED,
    "expandable_segments_reserve_by_class": _SPACE_RESERVED,
    "max_split_size_mb": _BLOCKS_SPLIT,
    "max_non_split_rounding_mb": _BLOCKS_SPLIT,
    "large_segment_size_mb":
        _ON_MAPPED + "memory comes in pages; remove it, or set "
        "expandable_segments:False",
}
# Those that count again with segments of cudaMalloc.
_OF_SEGMENTS = {"max_split_size_mb", "max_non_split_rounding_mb",
                "large_segment_size_mb"}
_logged = set()
_segments = False  # expandable_segments:False, said by the program


def _replace(hooks):
    for name in _VARIABLES:
        if os.environ.get(name):
            _read(os.environ[name])
            break  # torch reads the first, too
    hooks.replace(torch._C, "_accelerator_setAllocatorSettings", _set)


install, uninstall = installed(_replace)


def _set(original):
    def _accelerator_setAllocatorSettings(env):
        original(env)
        _bridge.lib().stratalloc_torch_note_settings()
        _read(env)

    return passing_on(original, _accelerator_setAllocatorSettings)


def _read(text):
    """One line for each option without an effect."""
    global _segments
    options = dict(_OPTION.findall(text))
    if "expandable_segments" in options:
        _segments = options["expandable_segments"].lower() == "false"
    for name, value in options.items():
        if (name not in NO_EFFECT or name in _logged
                or value.lower() == "false"
                or _segments and name in _OF_SEGMENTS):
            continue
        _logged.add(name)
        _log.warning("stratalloc: PyTorch's allocator option %s:%s has no "
                     "effect%s.", name, value, NO_EFFECT[name])
