# SPDX-License-Identifier: Apache-2.0
"""What a step shows: the text of an error, the statistics, the pools."""

import re

import torch

# fmt: off
# native's names: what must be equal, and what has a bound (compare.py).
EQUAL = ("requested_bytes", "allocation", "active")
BOUNDED = ("allocated_bytes", "active_bytes", "reserved_bytes")
KINDS = ("all", "small_pool", "large_pool")
# fmt: on
NUMBERS = re.compile(r"(0x)?[0-9][0-9a-f.]*( (bytes|[KMG]iB))?")
# Advice that is wrong where every segment is expandable; see compare.py.
HINT = re.compile(
    r" If reserved but unallocated memory is large try [^.]*\. "
    r"| with [^ ]* [^ ]* allocated in private pools \(e\.g\., CUDA Graphs\),"
)


def text_of(error):
    """An exception's first line without numbers, and without the hint."""
    text = str(error).split("\n", maxsplit=1)[0].split("Exception raised")[0]
    text = NUMBERS.sub("N", HINT.sub(" ", text + " "))
    return f"{type(error).__name__}: {' '.join(text.split())}"


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


def classes():
    """Per device: how many (stream, pool) of each kind have memory now."""
    seen = {
        (s["device"], s["stream"], tuple(s["segment_pool_id"]),
         s["segment_type"])
        for s in torch.cuda.memory_snapshot()
    }  # fmt: skip
    return [
        {f"{kind}_pool": sum(each[0] == i and each[3] == kind for each in seen)
         for kind in ("small", "large")}
        for i in range(torch.cuda.device_count())
    ]  # fmt: skip
