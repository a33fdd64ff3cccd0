# SPDX-License-Identifier: Apache-2.0
"""enable(), allocator() and library() with every setting as a keyword.

What they do is in _enable.py. Names, types and defaults are those of Config;
tests/test_public_names.py compares them.
"""

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from stratalloc import _enable
from stratalloc._native.argument_types import Codec, TelemetryLevel
from stratalloc.settings import Config

if TYPE_CHECKING:
    import torch

_Declared = TypeVar("_Declared", bound=Callable[..., Any])


def _calls(enter: Callable[..., Any]) -> Callable[[_Declared], _Declared]:
    """Passes to `enter` the arguments that a caller gives, and no defaults.

    A setting that is left out is that of `config` or STRATALLOC_CONF. The
    decorated function is its signature and its documentation; it never runs.
    """
    def decorate(declared: _Declared) -> _Declared:
        @functools.wraps(declared)
        def function(config=None, **given):
            return enter(config, **given)

        return function  # type: ignore[return-value]

    return decorate


@_calls(_enable.enable)
def enable(
    config: Config | None = None,
    *,
    tiering: bool = True,
    gpu_limit: int | str = 0,
    host_budget: int | str | None = None,
    disk_budget: int | str | None = None,
    disk_dir: str | os.PathLike[str] = "",
    disk_codec: Codec = "off",
    gpu_offload_threshold: float = 0.85,
    gpu_emergency_threshold: float = 0.95,
    gpu_reload_threshold: float = 0.7,
    eager_offload: bool | None = None,
    cpu_offload_threshold: float = 0.9,
    telemetry: TelemetryLevel = "counters",
    live: bool = False,
    oom_dir: str | os.PathLike[str] = "",
    oom_max_dumps: int = 8,
    oom_max_bytes: int | str = 1 << 30,
    oom_max_seconds: int = 20,
) -> bool:
    """Makes stratalloc PyTorch's CUDA allocator in this process.

    Call it before the first use of CUDA: any tensor on a GPU, any
    torch.cuda.init(). Calling it again is allowed until the first block exists.

    A budget that is too small, or larger than the machine's memory, logs a
    warning. With STRATALLOC=0 in the environment enable() logs one warning and
    does nothing else. On a machine without a GPU it prints one line on stderr
    and returns True; with STRATALLOC_STRICT=1 it raises RuntimeError instead.

    Settings that are left out are those of `config`; without a config, those of
    STRATALLOC_CONF; else the defaults below. Sizes are bytes, or text as
    "8GiB".

    Args:
      config: a Config to start from, in place of STRATALLOC_CONF.
      tiering: False: nothing is evicted, and operators are not guarded.
      gpu_limit: bytes per device; 0: the memory of the card.
      host_budget: bytes of pinned host memory for evicted memory; 0: none.
        None: half of the memory that is available, divided by the processes
        that torchrun started on this machine.
      disk_budget: bytes of the spill file; 0: no disk. None: half of the free
        disk, at most 64 GiB.
      disk_dir: the directory of the spill file. "": $TMPDIR, else /tmp.
      disk_codec: how the spill file is compressed.
      gpu_offload_threshold: share of the device above which cold memory is
        evicted in the background. In effect with eager_offload.
      gpu_emergency_threshold: share above which it is evicted before new memory
        is taken. In effect with eager_offload.
      gpu_reload_threshold: share at which background eviction stops. In effect
        with eager_offload.
      eager_offload: the three thresholds act from the start, not from the first
        request that does not fit. None: True if one of them is given.
      cpu_offload_threshold: share of the host budget above which the coldest
        copies go to disk.
      telemetry: how much is recorded; telemetry_level() changes it later.
      live: `stratalloc top` shows this process while it runs.
      oom_dir: an existing directory for reports of out-of-memory errors. "":
        none is written.
      oom_max_dumps: reports that this process writes there, at most.
      oom_max_bytes: bytes of all reports there together, at most.
      oom_max_seconds: seconds that the program waits for one report, at most.

    Returns: True if stratalloc is the allocator afterwards; False with
      STRATALLOC=0.

    Raises:
      ValueError: a setting does not exist or has a bad value.
      UnsupportedTorchError: this installation does not support this torch.
      RuntimeError: CUDA is initialised already.
    """
    raise NotImplementedError


@_calls(_enable.allocator)
def allocator(
    config: Config | None = None,
    *,
    tiering: bool = True,
    gpu_limit: int | str = 0,
    host_budget: int | str | None = None,
    disk_budget: int | str | None = None,
    disk_dir: str | os.PathLike[str] = "",
    disk_codec: Codec = "off",
    gpu_offload_threshold: float = 0.85,
    gpu_emergency_threshold: float = 0.95,
    gpu_reload_threshold: float = 0.7,
    eager_offload: bool | None = None,
    cpu_offload_threshold: float = 0.9,
    telemetry: TelemetryLevel = "counters",
    live: bool = False,
    oom_dir: str | os.PathLike[str] = "",
    oom_max_dumps: int = 8,
    oom_max_bytes: int | str = 1 << 30,
    oom_max_seconds: int = 20,
) -> "torch.cuda.memory._CUDAAllocator":
    """The object for torch.cuda.memory.change_current_allocator().

    The caller makes the swap; everything else happens as in enable().

    Args: as enable() has them.

    Raises: as enable(); NotEnabledError with STRATALLOC=0 in the environment.
    """
    raise NotImplementedError


@_calls(_enable.library)
def library(
    config: Config | None = None,
    *,
    tiering: bool = True,
    gpu_limit: int | str = 0,
    host_budget: int | str | None = None,
    disk_budget: int | str | None = None,
    disk_dir: str | os.PathLike[str] = "",
    disk_codec: Codec = "off",
    gpu_offload_threshold: float = 0.85,
    gpu_emergency_threshold: float = 0.95,
    gpu_reload_threshold: float = 0.7,
    eager_offload: bool | None = None,
    cpu_offload_threshold: float = 0.9,
    telemetry: TelemetryLevel = "counters",
    live: bool = False,
    oom_dir: str | os.PathLike[str] = "",
    oom_max_dumps: int = 8,
    oom_max_bytes: int | str = 1 << 30,
    oom_max_seconds: int = 20,
) -> str:
    """The path for PyTorch's own constructor of a pluggable allocator:

        torch.cuda.memory.CUDAPluggableAllocator(
            stratalloc.library(), "stratalloc_malloc", "stratalloc_free")

    Given to torch.cuda.memory.change_current_allocator() it becomes the whole allocator when
    CUDA is initialised, before the first block exists. Given to a MemPool it
    serves unmanaged segments that are never evicted. Everything but the swap
    happens here, as in enable().

    Args: as enable() has them.

    Raises: as enable(); NotEnabledError with STRATALLOC=0 in the environment.
    """
    raise NotImplementedError
