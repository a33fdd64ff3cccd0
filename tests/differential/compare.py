# SPDX-License-Identifier: Apache-2.0
"""What must be equal under both allocators, and what has a bound.

Equal at every step: what the step returned or raised (contents, use counts,
texts without numbers), `requested_bytes`, `allocation` and `active` (all, small
and large; current, peak, allocated and freed), `num_ooms`.

Bounded at every step: requested <= ours <= native for `active_bytes`, ours <=
native for `allocated_bytes`: ours splits at 512 bytes where native leaves up to
1 MiB at a block. `reserved_bytes`: at most native's and one handle of its pool
for every (stream, pool) that has memory.

Not compared, and why:
  reserved, segment, num_device_*     memory comes in handles, not in segments
  inactive_split                      nothing is: any whole handle can go back
  num_alloc_retries, num_sync_*       the ladder has other rungs
  the hint of expandable_segments     wrong here, left out (pytorch 173049)
  "allocated in private pools"        native adds up what is free in them
  active while a pool is routed       native looks at no event then (175015):
                                      nothing is pending when a pool begins,
                                      and nothing that was recorded is freed
                                      before it ends
"""

# The handles of both pools, with tiering off.
HANDLE = {"small_pool": 2 << 20, "large_pool": 2 << 20}
KINDS = ("all", "small_pool", "large_pool")
# Not counted: the bound is native's, and a program beyond it runs again.
NO_CLASSES = {"small_pool": 0, "large_pool": 0}


def difference(program, native, ours):
    """None, or what differs first, in words."""
    for side, name in ((native, "native"), (ours, "ours")):
        if "died" in side:
            return f"{name} died: {side['died']}"
        if "dirty" in side:
            return f"{name} left {side['dirty']}"
    steps = [*program, ["the end"]]
    for i, (step, n, o) in enumerate(zip(steps, native["log"], ours["log"])):
        found = _step(n, o)
        if found:
            return f"step {i}, {step}: {found}"
    return None


def _step(native, ours):
    if _shown(native[0]) != _shown(ours[0]):
        return f"native shows {_shown(native[0])}, ours {_shown(ours[0])}"
    return (_statistics(native[1], ours[1], ours[2] or NO_CLASSES)
            or _nested(native[0], ours[0]))


def _shown(value):
    """Without the statistics of nested steps, which _nested compares."""
    if isinstance(value, list):
        if len(value) == 2 and _is_statistics(value[1]):
            return _shown(value[0])
        return [_shown(each) for each in value]
    return value


def _is_statistics(value):
    return (isinstance(value, list) and len(value) == 2
            and isinstance(value[0], dict) and "num_ooms" in value[0])


def _nested(native, ours):
    if not isinstance(native, list):
        return None
    for n, o in zip(native, ours):
        if _is_statistics(n):
            found = _statistics(n, o, None)
        else:
            found = _nested(n, o)
        if found:
            return found
    return None


def _statistics(native, ours, classes):
    for key, value in native[0].items():
        if ours[0][key] != value:
            return f"{key} is {value} under native, {ours[0][key]} under ours"
    for kind in KINDS:
        n = {key: native[1][f"{key}.{kind}"]
             for key in ("allocated_bytes", "active_bytes", "reserved_bytes")}
        o = {key: ours[1][f"{key}.{kind}"] for key in n}
        requested = ours[0][f"requested_bytes.{kind}.current"]
        if not requested <= o["active_bytes"] <= n["active_bytes"]:
            return (f"active_bytes.{kind}: {requested} requested, ours "
                    f"{o['active_bytes']}, native {n['active_bytes']}")
        if o["allocated_bytes"] > n["allocated_bytes"]:
            return (f"allocated_bytes.{kind}: ours {o['allocated_bytes']}, "
                    f"native {n['allocated_bytes']}")
        if kind == "all" or classes is None:
            continue
        handles = classes[kind]
        allowed = n["reserved_bytes"] + handles * HANDLE[kind]
        if o["reserved_bytes"] > allowed:
            return (f"reserved_bytes.{kind}: ours {o['reserved_bytes']}, native "
                    f"{n['reserved_bytes']} and {handles} handles")
    return None
