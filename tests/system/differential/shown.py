# SPDX-License-Identifier: Apache-2.0
"""What a step shows: the text of an error, the statistics, the pools."""

import re

import torch

from tests.system.differential.compare import HANDLE

# fmt: off
# native's names: what must be equal, and what has a bound (compare.py).
EQUAL = ("requested_bytes", "allocation", "active")
BOUNDED = ("allocated_bytes", "active_bytes", "reserved_bytes")
KINDS = ("all", "small_pool", "large_pool")
# fmt: on
NUMBERS = re.compile(r"(0x)?[0-9][0-9a-f.]*( (bytes|[KMG]iB))?")
# Both texts begin alike; what follows is each allocator's own: native's sums
# and advice, our cause and remedy. See compare.py.
SHARED = re.compile(r"(CUDA out of memory\. .*? is free\.).*")


def text_of(error):
    """An exception's first line without numbers; of an out of memory what
    both allocators say."""
    text = str(error).split("\n", maxsplit=1)[0].split("Exception raised")[0]
    text = NUMBERS.sub("N", SHARED.sub(r"\1", text))
    return f"{type(error).__name__}: {' '.join(text.split())}"


# "Tried to allocate 2.00 MiB. GPU 0 has": what was refused, and where.
REFUSED = re.compile(r"allocate ([0-9.]+) (bytes|KiB|MiB|GiB).*?GPU (\d+)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def refused(error):
    """(device, bytes) of an OutOfMemoryError, or None."""
    found = REFUSED.search(str(error))
    if found is None:
        return None
    size, unit, device = found.groups()
    return int(device), int(float(size) * UNITS[unit])


def statistics(without=None):
    """Per device: what is equal, and what has a bound."""
    return [_statistics(i, without) for i in range(torch.cuda.device_count())]


def _statistics(device, without):
    stats = torch._C._cuda_memoryStats(device)
    equal = {
        f"{name}.{kind}.{key}": value
        for name in EQUAL
        if name != without
        for kind in KINDS
        for key, value in stats[name][kind].items()
    }
    equal["num_ooms"] = stats["num_ooms"]
    bounded = {
        f"{name}.{kind}.{key}": stats[name][kind][key]
        for name in BOUNDED
        for kind in KINDS
        for key in ("current", "peak")
    }
    return [equal, bounded]


def layout():
    """Per device: how many (stream, pool) of each kind have memory now, how
    many handles of them hold nothing, or nothing but blocks that wait for
    events, and how many live blocks of less than a handle lie across two."""
    shown = [{"across": 0, **{f"{kind}_pool{what}": 0
                              for kind in ("small", "large")
                              for what in ("", "_free", "_waiting")}}
             for _ in range(torch.cuda.device_count())]  # fmt: skip
    seen = set()
    for s in torch.cuda.memory_snapshot():
        here, kind = shown[s["device"]], s["segment_type"] + "_pool"
        which = s["device"], s["stream"], tuple(s["segment_pool_id"]), kind
        here[kind] += which not in seen
        seen.add(which)
        held, waits = set(), set()
        for block in s["blocks"]:
            if block["state"] == "inactive":
                continue
            first = block["address"] // HANDLE
            last = (block["address"] + block["size"] - 1) // HANDLE
            waiting = block["state"] == "active_pending_free"
            (waits if waiting else held).update(range(first, last + 1))
            here["across"] += block["size"] < HANDLE and first != last
        here[kind + "_free"] += s["total_size"] // HANDLE - len(held | waits)
        here[kind + "_waiting"] += len(waits - held)
    return shown
