# SPDX-License-Identifier: Apache-2.0
"""report(), stats() and memory_summary(): what the core knows, read-only."""

from stratalloc import _core
from stratalloc import _tiers
from stratalloc.settings import format_size


def report(device=None):
    """Everything about one device as a dict: totals, `layers`, `handles`.

    {} before CUDA is initialised under our allocator.
    """
    if not _core.initialized():
        return {}
    values = _core.report(_tiers.device_index(device))
    if "error" in values:
        raise RuntimeError(values["error"])
    return values


def stats(device=None):
    """The totals of report() without the lists."""
    return {key: value for key, value in report(device).items()
            if not isinstance(value, list)}


def memory_summary(device=None):
    """A text table of tiers and layers for people to read."""
    values = report(device)
    if not values:
        return "stratalloc: CUDA is not initialised under this allocator"
    return "\n".join(_lines(values))


def _lines(values):
    yield f"stratalloc, device {values.get('device', 0)}"
    for key, value in values.items():
        if isinstance(value, dict):
            pairs = "  ".join(f"{name} {_show(name, number)}"
                              for name, number in value.items())
            yield f"  {key}: {pairs}"
        elif not isinstance(value, list):
            yield f"  {key}: {_show(key, value)}"
    layers = values.get("layers", [])
    if layers:
        yield (f"  {'owner':<44} {'live':>10} {'peak':>10} {'device':>10} "
               f"{'host':>10} {'disk':>10}")
    for layer in sorted(layers, key=lambda row: -row.get("live", 0)):
        sizes = " ".join(f"{format_size(layer.get(key, 0)):>10}"
                         for key in ("live", "peak", "device", "host", "disk"))
        yield f"  {layer['owner'][-44:]:<44} {sizes}"


_COUNTS = ("count", "handles", "stalls", "drops", "retries", "ooms", "device")


def _show(name, value):
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if any(name.endswith(word) for word in _COUNTS):
        return str(value)
    return format_size(value)
