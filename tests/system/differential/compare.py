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

Explained, and counted by class (EXPLAINED): what the bounds allow, and what the
allocators may decide differently where memory is short or work outstanding.

Not compared, and why:
  reserved, segment, num_device_*     memory comes in handles, not in segments
  inactive_split                      nothing is: any whole handle can go back
  num_alloc_retries, num_sync_*       the ladder has other rungs
  an out of memory behind "is free."  native: sums, and advice that is wrong
                                      here (pytorch 173049); ours: cause and
                                      remedy
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
  pool lends                          when the pool is gone, and refuses what
                                      another thread asks for then ("already
                                      recording to mempool_id"): no pool of a
                                      starved program lends
  captures of a starved program       torch ends the process if a capture's
                                      first request is refused: ~CUDAGraph
                                      throws, its generator is not registered
  driver errors besides no memory     native's two kinds differ in their texts
  threads at the same time            what is reused would depend on chance:
                                      tests/system/stress does that
"""

import dataclasses

# The handle of both pools, with tiering off.
HANDLE = 2 << 20
KINDS = ("all", "small_pool", "large_pool")

# How a program is run: its seed, the device's mode, the bytes left to it.
EAGER = {"seed": 0, "mode": "eager", "room": None}

# Classes of what may differ. Whatever is in none is "different".
EXPLAINED = {
    "handles": "ours reserves more, within a handle of its pool for each "
               "(stream, pool) that has memory under native",
    "across": "ours reserves more, within that under ours and a handle for "
              "each live block of less than one that lies across two",
    "kept": "ours has cached what native had and its ladder gave back, all "
            "of it at once; within the same handles beyond what native had",
    "cached": "the same, or it went to another pool: of a starved program, "
              "less the handles of ours that hold nothing",
    "waited": "one allocator waited for the device and the other did not: "
              "other blocks still wait for events, and keep their handles",
    "served": "ours serves what native refuses; compared again without it",
    "refused": "ours refuses what native serves, within the same handles; "
               "compared again without it",
}  # fmt: skip


@dataclasses.dataclass
class Difference:
    """One, by step: `path` has its place and those inside of it."""

    path: list
    step: list
    text: str
    kind: str = "different"  # or "reserved" (run.classify), or as EXPLAINED
    at: int = -1  # the number of the count
    device: int = 0
    pool: str = "all"
    beyond: int = 0  # bytes more than native has
    given_back: int = 0  # of that, what native had and gave back
    parted: bool = False  # one of the two waited for the device
    said: str = ""  # what a look at the layouts said

    def __str__(self):
        place = ".".join(map(str, self.path))
        return f"step {place}, {self.step}: {self.text}"

    def ends(self):
        """What comes after it cannot be compared."""
        return self.kind in ("different", "served", "refused")


def differences(program, native, ours):
    """Yields what differs, first to last, up to one that ends it."""
    for side, name in ((native, "native"), (ours, "ours")):
        if "died" in side:
            yield Difference([], [], f"{name} died: {side['died']}")
            return
        if "dirty" in side:
            yield Difference([], [], f"{name} left {side['dirty']}")
            return
    parted = _Parted()
    given_back = _GivenBack()
    steps = [*program, ["the end"]]
    for found in _steps(steps, native["log"], ours["log"], parted, given_back, []):
        yield found
        if found.ends():
            return


def counts(log):
    """What a side counted, in order."""
    if isinstance(log, dict):
        if "statistics" in log:
            yield log
    elif isinstance(log, list):
        for each in log:
            yield from counts(each)


class _Parted:
    """Whether one of the two waited for the device where the other did not.

    Native's cudaFree waits for all work, so what waits for events may be done
    under it and not under ours; the ladder of ours waits for streams. Counted
    since the program itself waited (Tensors.synchronise).
    """

    def __init__(self):
        self.now = False
        self.peaks = False  # of a time when it was so
        self.sums = False  # what was reset then is missing

    def see(self, step, native, ours):
        self.now = native["waits"] != ours["waits"]
        if step[0] == "reset_peak":
            self.peaks = False
        if step[0] == "reset_accumulated":
            self.sums = False
        self.peaks |= self.now
        self.sums |= self.now

    def explains(self, key):
        kind = key.rpartition(".")[2]
        return {"current": self.now, "peak": self.peaks}.get(kind, self.sums)


class _GivenBack:
    """What native had since the program last emptied the cache, where its
    ladder has given memory back since: it gives back all that is cached where
    ours gives what is needed."""

    def __init__(self):
        self.most = {}  # (device, pool): bytes

    def see(self, step, native):
        if step[0] == "empty_cache":
            self.most.clear()
        for device, (_, bounded) in enumerate(native["statistics"]):
            for kind in KINDS:
                where = device, kind
                self.most[where] = max(
                    self.most.get(where, 0),
                    bounded[f"reserved_bytes.{kind}.current"],
                )

    def note(self, found, native):
        """How far a "reserved" difference is beyond what native had."""
        if native["frees"] and found.kind == "reserved":
            here = native["statistics"][found.device][1]
            now = here[f"reserved_bytes.{found.pool}.current"]
            most = self.most.get((found.device, found.pool), 0)
            found.given_back = max(0, most - now)


def _steps(steps, native, ours, parted, given_back, path):
    """Of steps in a row, those inside of one before itself."""
    for i, (step, n, o) in enumerate(zip(steps, native, ours)):
        place = [*path, i]
        inner = _inner(step, n[0]), _inner(step, o[0])
        if None not in inner:
            within = step[-1]
            if step[0] == "threads":
                within = [turn for _, turn in within]
            yield from _steps(within, *inner, parted, given_back, place)
        parted.see(step, n[1], o[1])
        found = _returned(place, step, n, o, parted)
        if found is not None:
            yield found
            continue
        for each in zip(counts(n), counts(o)):
            if None in inner or each[0] is n[1]:
                for difference in _counted(place, *each, parted, step):
                    given_back.note(difference, each[0])
                    yield difference
                given_back.see(step, each[0])


def _inner(step, shown):
    """The logs of the steps inside, or None."""
    if step[0] == "in_pool" and isinstance(shown, list):
        return shown[1]
    if step[0] in ("thread", "threads") and isinstance(shown, list):
        return shown
    return None


def _is_refused(shown):
    return isinstance(shown, str) and shown.startswith("OutOfMemoryError")


def _returned(place, step, native, ours, parted):
    """What the step returned or raised, without the steps inside of it."""
    n, o = (_own(step, each[0], parted) for each in (native, ours))
    kind = _refused(n, o, native[1], ours[1])
    if n == o and kind is None:
        return None
    if kind is not None:
        side = native if kind == "served" else ours
        device, wanted = side[1]["refused"] or (0, 0)
        text = f"ours is refused {wanted} bytes, native shows {n}"
        if kind == "served":
            text = f"native is refused {wanted} bytes, ours shows {o}"
        return Difference(
            place, step, text, kind, ours[1]["number"], device,
            beyond=_beyond_after(native[1], ours[1], device, wanted))  # fmt: skip
    return Difference(place, step, f"native shows {n}, ours {o}")


def _refused(n, o, native, ours):
    """"served" or "refused" if one came further than the other in the step."""
    if _is_refused(n) != _is_refused(o):
        return "served" if _is_refused(n) else "refused"
    if not _is_refused(n):
        return None
    # Both, in a step of several requests: who has been served more?
    served = [
        [device[0]["allocation.all.allocated"] for device in side["statistics"]]
        for side in (native, ours)
    ]
    if served[0] == served[1]:
        return None
    return "served" if served[0] < served[1] else "refused"


def _beyond_after(native, ours, device, wanted):
    """How far ours would be beyond native, had it served the request."""
    name = "reserved_bytes.all.current"
    n, o = (side["statistics"][device][1][name] for side in (native, ours))
    return o - n - (-wanted // HANDLE * HANDLE)


def _own(step, shown, parted):
    """Without what was counted and the steps inside, which are compared
    one by one."""
    if isinstance(shown, list):
        if _inner(step, shown) is not None:
            return [shown[0], shown[2]] if step[0] == "in_pool" else len(shown)
        if step[0] == "snapshot" and parted.now:
            return [row for row in shown if row[-1] != "active_pending_free"]
        return [_own((None,), each, parted) for each in shown
                if not isinstance(each, dict) or "statistics" not in each]
    return shown


def _counted(place, native, ours, parted, step):
    for device, (n, o) in enumerate(
        zip(native["statistics"], ours["statistics"])
    ):
        for found in _statistics(n, o, parted):
            found.path, found.step = place, step
            found.text = f"device {device}: {found.text}"
            found.at, found.device = ours["number"], device
            yield found


# What a block that waits for events still counts in.
_PENDING = ("active.", "requested_bytes.")


def _of(key, text, parted, active=True):
    kind = "waited" if active and parted.explains(key) else "different"
    return Difference([], [], text, kind)


def _statistics(native, ours, parted):
    for key, value in native[0].items():
        if ours[0][key] != value:
            yield _of(key, f"{key} is {value} under native, {ours[0][key]} "
                           "under ours", parted, key.startswith(_PENDING))  # fmt: skip
    for kind in KINDS:
        for key in ("current", "peak"):
            requested = ours[0].get(f"requested_bytes.{kind}.{key}", 0)
            name = f"active_bytes.{kind}.{key}"
            if not requested <= ours[1][name] <= native[1][name]:
                yield _of(key, f"{name}: {requested} requested, ours "
                               f"{ours[1][name]}, native {native[1][name]}",
                          parted)  # fmt: skip
            name = f"allocated_bytes.{kind}.{key}"
            if ours[1][name] > native[1][name]:
                yield _of(key, f"{name}: ours {ours[1][name]}, native "
                               f"{native[1][name]}", parted, active=False)  # fmt: skip
        name = f"reserved_bytes.{kind}.current"
        beyond = ours[1][name] - native[1][name]
        if kind != "all" and beyond > 0:
            yield Difference([], [], f"{name}: ours {ours[1][name]}, native "
                                     f"{native[1][name]}", "reserved",
                             pool=kind, beyond=beyond, parted=parted.now)  # fmt: skip
