# SPDX-License-Identifier: Apache-2.0
"""What may be given as a tracer's device: one, several, all, or the host."""

import torch

from stratalloc.compat._package import gpus as _gpus

CPU = "cpu"
_USE = ('use "cuda:0", another index, a list of them, "all", or "cpu" for '
        "memory of the host")


def checked(device):
    """`device` as it is kept: "all", "cpu", or a tuple of indices in which None
    is the current device.

    Raises:
      ValueError: it is none, or there is no such card.
      TypeError: it is nothing that names a device.
    """
    if isinstance(device, str) and device == "all":
        return device
    if isinstance(device, (list, tuple)):
        found = tuple(_index(one) for one in device)
        if not found:
            raise ValueError("stratalloc: MemoryTracer: device is an empty "
                             f"list; {_USE}")
        if CPU in found:
            raise ValueError("stratalloc: MemoryTracer: the host is traced by "
                             "a tracer of its own; give it "
                             "device=\"cpu\" alone")
        return tuple(dict.fromkeys(found))
    found = _index(device)
    return found if found == CPU else (found,)


def _index(device):
    if isinstance(device, bool) or not isinstance(
            device, (str, int, torch.device)):
        raise TypeError("stratalloc: MemoryTracer: device must be a str, an "
                        f"int or a torch.device, not {type(device).__name__}; "
                        f"{_USE}")
    try:
        # A bare number means the accelerator that is there, if one is.
        one = torch.device("cuda", device) if isinstance(
            device, int) else torch.device(device)
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"stratalloc: MemoryTracer: device={device!r} is no "
                         f"device ({said}); {_USE}") from None
    if one.type == "cpu":
        return CPU
    if one.type != "cuda":
        raise ValueError(f"stratalloc: MemoryTracer: device={device!r} is of "
                         f"a kind that is not traced; {_USE}")
    if one.index is not None and _gpus.why_none(torch) is None:
        _exists(one.index)
    return one.index


def _exists(index):
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise ValueError(
            f"stratalloc: MemoryTracer: there is no cuda:{index}: this process "
            f"sees {count} CUDA device{'s' if count != 1 else ''}; {_USE}")


def resolved(device):
    """Indices, now that something is traced.

    Raises:
      RuntimeError: there is no GPU.
      ValueError: there is no such card.
    """
    reason = _gpus.why_none(torch)
    if reason is not None:
        raise RuntimeError(
            "stratalloc: CUDA is not available, and MemoryTracer traces the "
            f"memory of a GPU: {reason}. Without one, trace the host's with "
            'MemoryTracer(device="cpu"), or start the program with '
            "`stratalloc run --simulate 8GiB`")
    torch.cuda.init()
    if device == "all":
        return list(range(torch.cuda.device_count()))
    found = [torch.cuda.current_device() if one is None else one
             for one in device]
    for one in found:
        _exists(one)
    return list(dict.fromkeys(found))
