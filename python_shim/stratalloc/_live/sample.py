# SPDX-License-Identifier: Apache-2.0
"""take(): what a live process says of itself, in raw integers.

The one place that asks the core for it. Nothing here calls CUDA or waits for a
migration; a device's lock is held for microseconds. Bytes, counts and
nanoseconds; what is counted is counted since the process began, so whoever
wants a speed takes two. None is what nobody knows.

Any thread. RuntimeError: a forked child, or a device that is lost.
"""

import os
import sys
import time

from stratalloc import simulate
from stratalloc._native import core as _core
from stratalloc._native import device_metrics as _device_metrics
from stratalloc._recording import levels as _levels
from stratalloc._rendering.table import natural

LAYERS = 100  # of each device: the largest now, and those that owned most
_NAME = 200  # characters of a layer's name or the command, at most
_DEVICE, _HOST, _DISK = range(3)  # tiers, as ways and bytes are told


def take():
    """A dict:

    pid, command, stratalloc, torch, simulated ("" on a real card), level (of
    telemetry), clock_ns (of the process; its zero means nothing), and
    `devices`: a list of {device, name, uuid (None: simulated), capacity, limit,
    allocated, allocated_peak, reserved, reserved_peak, live, device_bytes,
    host_bytes, disk_bytes (live ones by tier), moved: {out, in, to_disk,
    from_disk}, stalls, stall_ns, ooms, layers: [{owner, bytes, device, host,
    disk, peak, moved (out and in; both None where that is not told of so small
    a one), categories: {name: bytes}}], other_layers: {count, bytes}} of
    devices that are opened; `host` and `disk`: {used, budget}; `events`:
    {recorded, lost}, None where none ever were recorded.
    """
    found = {
        "pid": os.getpid(), "command": _cut(" ".join(sys.argv)),
        "stratalloc": _version(), "torch": None, "simulated": simulate.label(),
        "level": _levels.now(), "clock_ns": time.monotonic_ns(),
        "devices": [], "host": None, "disk": None, "events": None}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(getattr(torch, "__version__", ""))
    if not _core.initialized():
        return found
    # torch is there by now
    from stratalloc._ownership import modules as _modules

    _modules.relabel_all()
    for index in range(_core.device_count()):
        told, scopes = _core.metrics(index, LAYERS)
        if told.opened:
            found["devices"].append(_device(torch, index, told, scopes))
        # These are of the process, the same of every device.
        found["host"] = {"used": told.host_used, "budget": told.host_budget}
        found["disk"] = {"used": sum(one["disk_bytes"]
                                     for one in found["devices"]),
                         "budget": told.disk_budget}
        if told.events or told.without_ring:
            found["events"] = {"recorded": told.events,
                               "lost": told.overwritten + told.without_ring}
    return found


def moved():
    """What moved and was waited for in all, of every device: {out, in, to_disk,
    from_disk, stalls, stall_ns}; None before CUDA is initialised."""
    if not _core.device_count():
        return None
    sums = dict.fromkeys(("out", "in", "to_disk", "from_disk", "stalls",
                          "stall_ns"), 0)
    for index in range(_core.device_count()):
        told, _ = _core.metrics(index)
        for key, size in {**_ways(told), "stalls": told.stalls,
                          "stall_ns": told.stall_ns}.items():
            sums[key] += size
    return sums


def recorded():
    """How many events the rings have."""
    if not _core.device_count():
        return 0
    told, _ = _core.metrics(0)
    return told.events - told.overwritten


def _ways(told):
    tiers = (_DEVICE, _HOST, _DISK)

    def bytes_of(sources, targets):
        return sum(told.ways[source][target].bytes
                   for source in sources for target in targets)

    return {"out": bytes_of([_DEVICE], tiers), "in": bytes_of(tiers, [_DEVICE]),
            "to_disk": bytes_of(tiers, [_DISK]),
            "from_disk": bytes_of([_DISK], tiers)}


def _device(torch, index, told, scopes):
    card = torch.cuda.get_device_properties(index)
    by_tier = [sum(category[tier] for category in told.categories)
               for tier in range(len(_device_metrics.TIERS))]
    layers, others = _layers(_core.held(index)["rows"], scopes)
    return {
        "device": index, "name": card.name,
        "uuid": None if simulate.loaded() else str(getattr(card, "uuid", "")),
        "capacity": told.capacity, "limit": told.limit,
        "allocated": told.allocated, "allocated_peak": told.peak_allocated,
        "reserved": told.reserved, "reserved_peak": told.peak_reserved,
        "live": sum(by_tier), "device_bytes": by_tier[_DEVICE],
        "host_bytes": by_tier[_HOST], "disk_bytes": by_tier[_DISK],
        "moved": _ways(told), "stalls": told.stalls, "stall_ns": told.stall_ns,
        "ooms": told.ooms, "layers": layers, "other_layers": others}


def _layers(held, scopes):
    """The largest owners, and how much the others are."""
    owners = {}

    def owner(name):
        return owners.setdefault(name, {
            "owner": _cut(name), "bytes": 0, "device": 0, "host": 0, "disk": 0,
            "peak": None, "moved": None, "categories": {}})

    for row in held:
        if not row["live"]:
            continue
        one = owner(row["owner"])
        one["bytes"] += row["live"]
        for tier in _device_metrics.TIERS:
            one[tier] += row[tier]
        one["categories"][row["category"]] = row["live"]
    names = []
    for scope in scopes:
        names.append(_core.scope_name(scope.scope))
        owner(names[-1]).update(peak=scope.most,
                                moved=scope.evicted + scope.restored)
    names += sorted(owners, key=lambda one: (-owners[one]["bytes"],
                                             natural(one)))[:LAYERS]
    told = {name: owners.pop(name) for name in dict.fromkeys(names)}
    return list(told.values()), {
        "count": len(owners),
        "bytes": sum(one["bytes"] for one in owners.values())}


def _cut(text):
    """Both ends of what is long."""
    if len(text) <= _NAME:
        return text
    return f"{text[:_NAME // 2]}…{text[-_NAME // 2:]}"


def _version():
    import stratalloc

    return stratalloc.__version__
