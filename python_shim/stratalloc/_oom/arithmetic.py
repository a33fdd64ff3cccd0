# SPDX-License-Identifier: Apache-2.0
"""The card's memory as rows that add up to its capacity.

Of one moment, but for NVML's answer: of what others have the card's own sum
counts, and NVML says only who they are. Where it does not tell this process
apart (it lists other numbers inside a container) nobody does, and the row says
so.
"""

# In the order of the table: key -> what it is, for people.
ROWS = {
    "allocated": "allocated: live tensors and workspaces",
    "pending": "freed, but other streams still use it",
    "stranded": "free beside live blocks, in pieces",
    "releasable": "free and cached, for any request",
    "in_private_pools": "free in pools of CUDA graphs and MemPools",
    "kept": "kept for reuse",
    "non_torch": "of this process outside of PyTorch: context, NCCL, cuBLAS",
    "other_processes": "of other processes",
    "unknown": "of other processes, or of this one outside of PyTorch: "
               "the driver does not say which",
    "free": "free on the card",
}


def table(facts):
    """{key: bytes} of ROWS; the sum is the card's capacity."""
    parts, held = facts["parts"], facts["parts"]["held"]
    rows = {key: held[key] for key in ("allocated", "pending", "stranded",
                                       "releasable", "in_private_pools")}
    ours = max(parts["ours"], held["reserved"])
    rows["kept"] = ours - held["reserved"]
    beside = max(0, parts["total"] - parts["free"] - ours)
    rows.update(_beside(facts, ours, beside))
    rows["free"] = parts["total"] - ours - beside
    return {key: rows[key] for key in ROWS}


def _beside(facts, ours, beside):
    """Who has what is not the allocator's."""
    used = {one["pid"]: one["bytes"] for one in facts["processes"]}
    own = used.pop(facts["own_pid"], None)
    if own is None:
        return {"non_torch": 0, "other_processes": 0, "unknown": beside}
    non_torch = min(beside, max(0, own - ours))
    others = min(beside - non_torch, sum(used.values()))
    return {"non_torch": non_torch, "other_processes": others,
            "unknown": beside - non_torch - others}
