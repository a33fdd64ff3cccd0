# SPDX-License-Identifier: Apache-2.0
"""The struct of python_shim/c_api/device_metrics.h, for ctypes: what is shown of one
device over time. Fields mean what they mean there, in the same order; the core
refuses a struct of another size."""

import ctypes

from stratalloc._native.stack import CATEGORIES

TIERS = ("device", "host", "disk")

_u64 = ctypes.c_uint64
_TIERS = _u64 * len(TIERS)


def _numbers(names):
    return [(name, _u64) for name in names.split()]


class Way(ctypes.Structure):
    """One way between two tiers."""

    _fields_ = _numbers("moves bytes ns")


class Scope(ctypes.Structure):
    """A scope's bytes by tier, and its traffic."""

    _fields_ = [*_numbers("scope most"), ("tiers", _TIERS),
                *_numbers("evicted restored stalls stall_ns")]


class Device(ctypes.Structure):
    """One device, and the process that it is used by."""

    _fields_ = [
        *_numbers("size opened capacity limit allocated requested active "
                  "reserved peak_allocated peak_reserved largest_free pending "
                  "stranded releasable in_private_pools allocations frees "
                  "allocated_in_all driver_allocs ooms retries"),
        ("categories", _TIERS * len(CATEGORIES)), ("others", Scope),
        ("scopes", _u64), ("ways", (Way * len(TIERS)) * len(TIERS)),
        ("below", _TIERS),
        *_numbers("stalls stall_ns late host_budget disk_budget host_used "
                  "host_reserved events overwritten without_ring names_lost "
                  "stacks_lost")]
