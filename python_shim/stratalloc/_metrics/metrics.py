# SPDX-License-Identifier: Apache-2.0
"""What a process that runs tells of itself as metrics: families of samples, by
the names of telemetry/exports/families.py.

One struct of the core per device and scrape (_core.metrics): nothing here calls
CUDA, walks blocks or reads tensors. Any thread. What cannot be asked any more
(a forked child, a process without CUDA) is left out; nothing is raised.
"""

import functools
import logging
import os
import sys

from stratalloc._native import core as _core
from stratalloc._native.device_metrics import TIERS
from stratalloc._native.stack import CATEGORIES
# Here, not by a scrape: a child that is forked during an import waits for it
# for ever when it imports the same.
from stratalloc._version import __version__
from stratalloc.telemetry.exports.families import Families

MODULES = 32  # scopes that are named, of each device
_LONGEST = 256  # characters of a label
_log = logging.getLogger("stratalloc")


def families(modules=MODULES):
    """[Family] of this process, now. `modules`: so many scopes of each device
    have a name, those that owned most at any time; the rest is "(other)"."""
    found = Families(rank())
    process = None
    for index in range(_core.device_count()):
        try:
            device, scopes = _core.metrics(index, modules)
        except (ValueError, RuntimeError) as error:
            _log.debug("device %d has no metrics: %s", index, error)
            continue
        process = device
        if device.opened:
            _of_memory(found, index, device)
            _of_owners(found, index, device, scopes)
            _of_events(found, index, device)
            _of_moves(found, index, device)
    if process is not None:
        _of_process(found, process)
    torch = sys.modules.get("torch")
    found.put("build_info", 1, __version__,
              str(getattr(torch, "__version__", "")))
    return found.all()


def rank():
    """This process's number among others, as its launcher said; None: none."""
    said = os.environ.get("RANK", "")
    return said if said.isascii() and said.isdecimal() else None


def _tiers(device):
    """Indices of the tiers that there are."""
    budgets = (1, device.host_budget, device.disk_budget)
    return [tier for tier, budget in enumerate(budgets) if budget]


def _of_memory(found, index, device):
    for tier in _tiers(device):
        found.put("memory_allocated_bytes", device.allocated if tier == 0 else
                  sum(row[tier] for row in device.categories), index,
                  TIERS[tier])
    for name in ("requested", "active", "reserved"):
        found.put(f"memory_{name}_bytes", getattr(device, name), index,
                  "device")
    found.put("memory_limit_bytes", device.limit, index, "device")
    found.put("memory_largest_free_block_bytes", device.largest_free, index,
              "device")
    found.put("memory_capacity_bytes", device.capacity, index)
    for name in ("allocated", "reserved"):
        found.put(f"memory_peak_{name}_bytes", getattr(device, f"peak_{name}"),
                  index)
    found.shares(index, device.reserved, {
        "rounding": device.active - device.requested,
        "stranded": device.stranded,
        "releasable": device.releasable + device.in_private_pools,
        "pending": device.pending})


def _of_owners(found, index, device, scopes):
    for tier in _tiers(device):
        for category, name in enumerate(CATEGORIES):
            found.put("memory_category_bytes",
                      device.categories[category][tier], index, TIERS[tier],
                      name)
        for name, scope in [*((_name(one.scope), one) for one in scopes),
                            ("(other)", device.others)]:
            found.add("module_allocated_bytes", scope.tiers[tier], index,
                      TIERS[tier], name)
    found.put("modules", device.scopes, index)


def _of_events(found, index, device):
    for name in ("allocations", "frees", "ooms", "stalls"):
        found.put(name, getattr(device, name), index)
    found.put("alloc_retries", device.retries, index)
    found.put("driver_allocations", device.driver_allocs, index)
    found.put("allocated_bytes", device.allocated_in_all, index)
    found.put("stall_seconds", device.stall_ns / 1e9, index)
    found.put("prefetch_late", device.late, index)


# Nothing comes to the host but from the device.
_WAYS = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2))


def _of_moves(found, index, device):
    tiers = _tiers(device)
    for tier in tiers[1:]:
        found.put("tier_bytes", device.below[tier], index, TIERS[tier])
    for source, target in _WAYS:
        if source in tiers and target in tiers:
            way = device.ways[source][target]
            found.moved((index, TIERS[source], TIERS[target]), way.moves,
                        way.bytes, way.ns)


def _of_process(found, device):
    for tier, size in (("host", device.host_budget),
                       ("disk", device.disk_budget)):
        if size:
            found.put("tier_limit_bytes", size, tier)
    if device.host_budget:
        found.put("tier_used_bytes", device.host_used, "host")
        found.put("tier_reserved_bytes", device.host_reserved, "host")
    found.put("trace_events", device.events)
    found.put("trace_dropped", device.overwritten + device.without_ring)
    found.put("trace_names_lost", device.names_lost)
    found.put("trace_stacks_lost", device.stacks_lost)


@functools.lru_cache(maxsize=4096)
def _name(scope):
    name = _core.scope_name(scope)
    return name if len(name) <= _LONGEST else name[:_LONGEST - 1] + "…"
