# SPDX-License-Identifier: Apache-2.0
"""What must be equal under both allocators, and what has a bound.

Equal at every step: what the step returned or raised (contents, use counts,
texts without numbers), `requested_bytes`, `allocation` and `active` (all, small
and large; current, peak, allocated and freed), `num_ooms`.

Bounded at every step, nested ones too: requested <= ours <= native for
`active_bytes`, ours <= native for `allocated_bytes`, current and peak: ours
splits at 512 bytes where native leaves up to 1 MiB at a block.
`reserved_bytes.current`: at most native's and one handle of its pool for every
(stream, pool) that has memory.

Not compared, and why:
  reserved, segment, num_device_*     memory comes in handles, not in segments
  inactive_split                      nothing is: any whole handle can go back
  num_alloc_retries, num_sync_*       the ladder has other rungs
  the hint of expandable_segments     wrong here, left out (pytorch 173049)
  "allocated in private pools"        native adds up what is free in them
  requested_bytes of a checkpoint gone back to
                                      native forgets what was asked for: it
                                      counts its own sizes of the blocks; and
                                      counts free ones as allocated meanwhile
  active while a pool is routed       native looks at no event then (175015):
                                      nothing is pending when a pool begins,
                                      and nothing that was recorded is freed
                                      before it ends

Not generated, and why:
  a failing driver in a pool's route  native gives up at once then (159674)
  a pool that is used twice at once   refused by both; native counts the use,
                                      and never gives the pool's memory back
  out of memory in a route while a    native may keep that pool's segments
  pool lends                          when the pool is gone
  driver errors besides no memory     native's two kinds differ in their texts
  threads at the same time            what is reused would depend on chance:
                                      tests/stress does that
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
    """Of two [shown, counted], and of those inside of them."""
    if _shown(native) != _shown(ours):
        return f"native shows {_shown(native)[0]}, ours {_shown(ours)[0]}"
    return _nested(native, ours)


def _is_counted(value):
    return isinstance(value, dict) and "statistics" in value


def _shown(value):
    """Without what was counted, which _nested compares."""
    if isinstance(value, list):
        return [_shown(each) for each in value if not _is_counted(each)]
    return value


def _nested(native, ours):
    if _is_counted(native):
        classes = ours["classes"] or [NO_CLASSES] * len(ours["statistics"])
        for device, each in enumerate(
            zip(native["statistics"], ours["statistics"], classes)
        ):
            found = _statistics(*each)
            if found:
                return f"device {device}: {found}"
    elif isinstance(native, list):
        for n, o in zip(native, ours):
            found = _nested(n, o)
            if found:
                return found
    return None


def _statistics(native, ours, classes):
    for key, value in native[0].items():
        if ours[0][key] != value:
            return f"{key} is {value} under native, {ours[0][key]} under ours"
    for kind in KINDS:
        for key in ("current", "peak"):
            requested = ours[0].get(f"requested_bytes.{kind}.{key}", 0)
            name = f"active_bytes.{kind}.{key}"
            if not requested <= ours[1][name] <= native[1][name]:
                return (f"{name}: {requested} requested, ours "
                        f"{ours[1][name]}, native {native[1][name]}")
            name = f"allocated_bytes.{kind}.{key}"
            if ours[1][name] > native[1][name]:
                return f"{name}: ours {ours[1][name]}, native {native[1][name]}"
        if kind == "all":
            continue
        name = f"reserved_bytes.{kind}.current"
        handles = classes[kind]
        if ours[1][name] > native[1][name] + handles * HANDLE[kind]:
            return (f"{name}: ours {ours[1][name]}, native {native[1][name]} "
                    f"and {handles} handles")
    return None
