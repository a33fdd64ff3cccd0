# SPDX-License-Identifier: Apache-2.0
"""MemoryConfig: what one manager does, each option checked when it is set.

An option may be assigned while managers run with it: they look at it again
before each thing they do. Values that make no sense are ValueErrors that name
the option, and leave it as it was; so are options of other versions that would
have no effect here. The reference page has what each one means.
"""

import dataclasses
import math
import os
import threading

_MOST_GIB = (1 << 33) - 1  # of which a file's quota counts the bytes


def _bad(name, value, why):
    return ValueError(f"stratalloc: MemoryConfig: {name}={value!r}: {why}")


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(name, value, "give a number")
    if not math.isfinite(value):
        raise _bad(name, value, "give a finite number")
    return float(value)


def _ratio(name, value):
    number = _number(name, value)
    if not 0 < number <= 1:
        raise _bad(name, value, "give a ratio above 0 and at most 1; "
                                f"85 % is 0.85")
    return number


def _share(name, value):
    number = _number(name, value)
    if not 0 <= number < 1:
        raise _bad(name, value, "give a ratio from 0, below 1")
    return number


def _seconds(name, value):
    number = _number(name, value)
    if not 0 < number <= threading.TIMEOUT_MAX:
        raise _bad(name, value, "give seconds above 0, at most "
                                f"{threading.TIMEOUT_MAX:.0f}")
    return number


def _from_zero(name, value):
    number = _number(name, value)
    if number < 0:
        raise _bad(name, value, "give a number from 0")
    return number


def _disk_space(name, value):
    number = _number(name, value)
    if not 0 <= number <= _MOST_GIB:
        raise _bad(name, value, f"give GiB from 0, at most {_MOST_GIB}")
    return number


def _capacity(name, value):
    if value is None:
        return None
    number = _number(name, value)
    if number <= 0:
        raise _bad(name, value, "give GiB above 0, or None for the card's")
    return number


def _switch(name, value):
    if not isinstance(value, bool):
        raise _bad(name, value, "give True or False")
    return value


def _count(name, value):
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad(name, value, "give a whole number of modules from 1")
    return value


def _directory(name, value):
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.path.isdir(value):
        raise _bad(name, value, "there is no such directory; make it first")
    return os.fspath(value)


def _pinned(name, value):
    if _switch(name, value):
        return value
    raise _bad(name, value, "what leaves a GPU is in pinned memory, always; "
                            "leave the option out")


def _window(name, value):
    raise _bad(name, value, "how far to look ahead is decided by the allocator "
                            "from the room there is; leave the option out")


def _option(default, check):
    return dataclasses.field(default=default, metadata={"check": check})


@dataclasses.dataclass
class MemoryConfig:
    """Options of a MemoryManager.

    Ratios are of what this process may have of a device (gpu_) or of the
    machine's or its container's memory (cpu_); sizes are GiB, times seconds.

    Raises ValueError for a value that cannot be, at once or when it is
    assigned later. gpu_reload_threshold above gpu_offload_threshold becomes
    that one.
    """

    gpu_offload_threshold: float = _option(0.85, _ratio)
    gpu_emergency_threshold: float = _option(0.95, _ratio)
    gpu_reload_threshold: float = _option(0.70, _ratio)
    cpu_offload_threshold: float = _option(0.90, _ratio)
    memory_check_interval: float = _option(0.1, _seconds)
    enable_cpu_offload: bool = _option(True, _switch)
    enable_disk_offload: bool = _option(True, _switch)
    compress_disk_cache: bool = _option(True, _switch)
    eager_offload_on_wrap: bool = _option(True, _switch)
    offload_1d_parameters: bool = _option(False, _switch)
    max_disk_usage_gb: float = _option(50.0, _disk_space)
    offload_batch_size: int = _option(10, _count)
    prefetch_enabled: bool = _option(True, _switch)

    # Of the version that was published, beside the document.
    cpu_emergency_threshold: float = _option(0.98, _ratio)
    disk_cache_dir: str | None = _option(None, _directory)
    vram_cap_gb: float | None = _option(None, _capacity)
    min_free_gpu_memory: float = _option(0.0, _share)
    time_since_forward_threshold: float = _option(0.0, _from_zero)
    aggressive_post_forward_offload: bool = _option(False, _switch)
    empty_cache_after_offload: bool = _option(False, _switch)
    pin_memory: bool = _option(True, _pinned)
    prediction_window: dataclasses.InitVar[object] = None

    def __post_init__(self, prediction_window):
        if prediction_window is not None:
            _window("prediction_window", prediction_window)
        self.__dict__["_whole"] = True
        self._agree(self.__dict__)
        self._clamp()

    def __setattr__(self, name, value):
        field = self.__dataclass_fields__.get(name)
        if field is None or "check" not in field.metadata:
            if name == "prediction_window":
                _window(name, value)
            raise AttributeError(
                f"stratalloc: MemoryConfig has no option {name!r}")
        checked = field.metadata["check"](name, value)
        if self.__dict__.get("_whole"):
            self._agree({**self.__dict__, name: checked})
        self.__dict__[name] = checked
        if self.__dict__.get("_whole"):
            self._clamp()

    @staticmethod
    def _agree(values):
        for kind in ("gpu", "cpu"):
            offload, emergency = (f"{kind}_offload_threshold",
                                  f"{kind}_emergency_threshold")
            if values[offload] > values[emergency]:
                raise _bad(offload, values[offload],
                           f"it is above {emergency} ({values[emergency]}), "
                           "which has to come later; raise that one, too")

    def _clamp(self):
        self.__dict__["gpu_reload_threshold"] = min(
            self.gpu_reload_threshold, self.gpu_offload_threshold)

    @classmethod
    def for_low_memory(cls, **options):
        """For a card, or a machine, that the model does not fit: everything
        leaves earlier, and more of it at once. `options` replace single ones.
        """
        return cls(**{**dict(
            gpu_offload_threshold=0.60, gpu_emergency_threshold=0.80,
            gpu_reload_threshold=0.45, cpu_offload_threshold=0.70,
            memory_check_interval=0.05, offload_batch_size=20), **options})

    @classmethod
    def for_high_performance(cls, **options):
        """For a card that is nearly large enough: what is there stays as long
        as it can, and little leaves at once. `options` replace single ones."""
        return cls(**{**dict(
            gpu_offload_threshold=0.92, gpu_emergency_threshold=0.98,
            gpu_reload_threshold=0.85, cpu_offload_threshold=0.95,
            offload_batch_size=5, eager_offload_on_wrap=False), **options})
