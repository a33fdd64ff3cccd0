# SPDX-License-Identifier: Apache-2.0
"""Where a run happens: the CPU, torch's own allocator, or ours on a card.

For children of a zygote, before their first use of CUDA.
"""

import contextlib
import ctypes

PAGE = 2 << 20  # what the simulated device hands out


def device(capacity=None, allocator="stratalloc", **settings):
    """Gives this process devices of `capacity` under that allocator.

    One size for all devices, or a list with one for each.
    """
    from stratalloc import simulate

    import torch

    driver = simulate.driver()
    if capacity is not None:
        if isinstance(capacity, int):
            capacity = [capacity] * torch.cuda.device_count()
        for index, size in enumerate(capacity):
            driver.cudasim_set_capacity(ctypes.c_int(index),
                                        ctypes.c_uint64(size))
    if allocator == "stratalloc":
        import stratalloc

        settings.setdefault("host_budget", 512 << 20)
        settings.setdefault("disk_budget", 0)
        stratalloc.enable(**settings)


def pages(size):
    """`size` rounded down to what a device can have."""
    return int(size) // PAGE * PAGE


def moved():
    """Bytes that left and came back so far, over all devices."""
    import torch

    import stratalloc

    total = {"out": 0, "in": 0}
    if not stratalloc.is_enabled() or not torch.cuda.is_initialized():
        return total
    for index in range(torch.cuda.device_count()):
        tiers = stratalloc.report(index).get("tiers")
        if tiers:
            total["out"] += tiers["bytes_evicted"]
            total["in"] += tiers["bytes_restored"]
    return total


def faults():
    """What a real device would have punished in this process."""
    from stratalloc import simulate

    counters = simulate.counters()
    found = [f"{counters[name]} {name}" for name in (
        "launches_without_twin", "refused_calls", "violations")
        if counters.get(name)]
    return found + simulate.violations()[:3]


@contextlib.contextmanager
def virtual_seconds(found):
    """Adds the virtual seconds of a block to the list `found`."""
    from stratalloc import simulate

    before = simulate.virtual_time().get("seconds", 0.)
    yield
    found.append(simulate.virtual_time().get("seconds", 0.) - before)
