# SPDX-License-Identifier: Apache-2.0
"""What the driver says of a whole card: who else holds memory, how busy it is.

Asked through NVML (PyPI: nvidia-ml-py) by whoever looks at a process, not by
the process. Where nobody knows, None and a reason, never 0: a simulated device,
no NVML, a container that sees no other process.
"""

import dataclasses

from stratalloc._live import fitting
from stratalloc.sizes import format_size


@dataclasses.dataclass(frozen=True)
class Card:
    """`others`: [(pid, bytes)], the largest first, without `pid` itself; bytes
    are None where the driver does not say. `why`: of what is None."""

    busy: int | None = None  # percent of the last moments
    used: int | None = None  # bytes, by everybody
    others: tuple | None = None
    why: str = ""


def line(cards, width):
    """A sentence of all of them: [(device, Card)]. As many others as fit."""
    many = len(cards) > 1
    busy = sorted(one.busy for _, one in cards if one.busy is not None)
    used = [one.used for _, one in cards if one.used is not None]
    speed = f"{busy[0]} %" if busy and busy[0] == busy[-1] else (
        f"{busy[0]} to {busy[-1]} %" if busy else "unknown")
    said = (("cards" if many else "card") + ": busy " + speed
            + _but(busy, cards) + ", used "
            + (format_size(sum(used)) if used else "unknown")
            + _but(used, cards) + ", by others ")
    known = [one for _, one in cards if one.others is not None]
    why = "; ".join(dict.fromkeys(one.why for _, one in cards
                                  if one.others is None))
    if not known:
        return f"{said}unknown ({why})"
    held = [f"pid {pid} {'unknown' if size is None else format_size(size)}"
            + (f" (device {device})" if many else "")
            for device, one in cards for pid, size in one.others or ()]
    left = _but(known, cards, f": {why}")
    return said + fitting.several(
        held or ["none"], width - len(said) - len(left)) + left


def _but(known, cards, why=""):
    """What of some of several cards is not known."""
    unknown = len(cards) - len(known)
    return f" ({unknown} unknown{why})" if known and unknown else ""


def look(device, pid):
    """The Card of a device as a sample has it; `pid`: whose sample. Never
    raises."""
    if device["uuid"] is None:
        return Card(why="the device is simulated")
    try:
        import pynvml
    except ImportError:
        return Card(why="NVML's package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        try:
            return _asked(pynvml, f"GPU-{device['uuid']}", pid)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Card(why=f"NVML: {error}")


def _asked(pynvml, uuid, pid):
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def known(call):
        try:
            return call(handle)
        except pynvml.NVMLError:
            return None

    memory = known(pynvml.nvmlDeviceGetMemoryInfo)
    rates = known(pynvml.nvmlDeviceGetUtilizationRates)
    others, why = None, ""
    try:
        held = _held(pynvml, handle)
    except pynvml.NVMLError as error:
        why = f"NVML: {error}"
    else:
        if pid in held:
            del held[pid]
            others = tuple(sorted(held.items(),
                                  key=lambda one: (-(one[1] or 0), one[0])))
        else:
            # Its numbers are of another container, or it may not see ours.
            why = "the driver does not list this process among those of the card"
    return Card(None if rates is None else rates.gpu,
                None if memory is None else memory.used, others, why)


def _held(pynvml, handle):
    """{pid: bytes, or None where the driver does not say}."""
    held = {one.pid: one.usedGpuMemory for one in
            pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    try:
        drawing = pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    except pynvml.NVMLError_NotSupported:
        drawing = []  # a card that draws nothing
    for one in drawing:
        held.setdefault(one.pid, one.usedGpuMemory)
    return held
