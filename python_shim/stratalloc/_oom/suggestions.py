# SPDX-License-Identifier: Apache-2.0
"""Suggestions: what would have served the request, each tried before it is
said, the one that gives up least first.

What costs the program nothing comes first (waiting, pools, pins, settings).
Then comes what is given up, by its bytes: of others on the card where they are
the verdict, of blocks that end, of the request. Blocks of a model and of its
optimizer are never among them: a program in use cannot free them. Tried means: on a copy of the
device's blocks, with this and nothing else done, the same request was served.
Only a scope's own limit is a sum and no matter of blocks.
"""

import dataclasses
import math

from stratalloc._oom import arithmetic
from stratalloc._oom.verdict import named, refusing_limits
from stratalloc.sizes import format_size as size

_OWNERS = 4  # that are tried, of a model's own and of others
_MOST = 6  # suggestions
_OTHERS = ("other_processes", "non_torch", "unknown")  # verdicts
# What ends activations, which a program does not free by name.
_OF_GRAPHS = (" Activations live as long as a graph that needs them: a smaller "
              "batch has fewer, torch.utils.checkpoint makes them again, and a "
              "loss that is kept as a tensor keeps all of its graph.")
_KEPT = ("parameter", "buffer", "optimizer_state")  # categories of a model's


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """One thing to do.

    Attributes:
      action: "wait", "raise_limit", "raise_scope_limit", "raise_fraction",
        "raise_room", "release_pools", "free", "unpin", "end_processes",
        "end_others" or "ask_less".
      text: a sentence.
      bytes: by how much a setting rises, or how much ends.
      to: bytes: the new value of a setting; of "ask_less" the size that is
        served; else 0.
      scope: whose limit or memory that is, or "".
      blocks: addresses of the blocks that end.
    """

    action: str
    text: str
    bytes: int
    to: int = 0
    scope: str = ""
    blocks: tuple[int, ...] = ()


def find(facts, trials, verdict):
    """[Suggestion], at most _MOST; none if nothing that was tried helps."""
    limits = refusing_limits(facts)
    if limits:
        return [*_of_scope_limits(facts, limits, trials)]
    if trials.base.served:
        return []
    given_up = [*_of_blocks(facts, trials), *_of_less(facts, trials),
                *_of_others(facts, trials)]
    def loss(one):
        cause = (verdict.kind in _OTHERS
                 and one.action in ("end_processes", "end_others"))
        return not cause, one.bytes

    return [*_of_nothing_lost(facts, trials),
            *sorted(given_up, key=loss)][:_MOST]


def _of_scope_limits(facts, limits, trials):
    limit = limits[0]
    wanted = limit["owned"] + facts["rounded"]
    if trials.base.served and len(limits) == 1:  # nothing else refuses it
        yield Suggestion(
            "raise_scope_limit",
            f"Raise the limit of {named(limit['owner'])} by "
            f"{size(wanted - limit['bytes'])} to {size(wanted)} "
            "(stratalloc.limit), or free some of what it owns.",
            wanted - limit["bytes"], wanted, limit["owner"])
    fits = min(one["bytes"] - one["owned"] for one in limits)
    fits = min(fits // 512 * 512, trials.fits or 0)
    if fits > 0:
        yield _less(facts, fits)


def _of_nothing_lost(facts, trials):
    parts, held = facts["parts"], facts["parts"]["held"]
    if held["pending"] and trials.served("streams_end"):
        yield Suggestion(
            "wait", "Let the other streams finish with what was freed, before: "
            "torch.cuda.synchronize()"
            + (" before the capture begins." if parts["capturing"] else "."),
            held["pending"])
    if held["in_private_pools"] and trials.served("pools_end"):
        yield Suggestion(
            "release_pools", "Reset the CUDA graphs and drop the MemPools that "
            "are done with: their pools keep "
            f"{size(held['in_private_pools'])} that are free.",
            held["in_private_pools"])
    pinned = sum(row["bytes"] for row in facts["pinned"])
    if pinned and trials.would_serve(unpinned=1):
        yield Suggestion(
            "unpin", "Take pins back (unpin()) and end exports: "
            f"{size(pinned)} are pinned, and what is not may leave.", pinned)
    yield from sorted(_of_settings(facts, trials), key=lambda one: one.bytes)


def _of_settings(facts, trials):
    room = _room(facts, trials)
    if room:
        budget = facts["settings"].get("host_budget", 0)
        yield Suggestion(
            "raise_room", f"Raise host_budget by {size(room)} to "
            f"{size(budget + room)}, or disk_budget by as much.", room,
            budget + room)
    missing = trials.base.missing
    if missing and trials.served("more_limit"):
        yield _of_limit(facts, facts["parts"]["allowed"] + missing)


def _up(fraction):
    """Four digits, never below: less would be refused again."""
    digits = 3 - math.floor(math.log10(fraction))
    return f"{math.ceil(fraction * 10 ** digits) / 10 ** digits:.4g}"


def _of_limit(facts, wanted):
    parts = facts["parts"]
    by = wanted - parts["allowed"]
    # What the fraction is of.
    card = min(facts["settings"].get("gpu_limit") or parts["total"],
               parts["total"])
    fraction = ("the memory fraction "
                "(torch.cuda.set_per_process_memory_fraction) from "
                f"{parts['fraction']:.4g} to {_up(min(wanted / card, 1))}")
    if wanted <= card:
        return Suggestion("raise_fraction", f"Raise {fraction}, by {size(by)}.",
                          by, wanted)
    return Suggestion(
        "raise_limit",
        f"Raise gpu_limit by {size(wanted - card)} to {size(wanted)}"
        + (f", and {fraction}." if parts["fraction"] < 1 else "."),
        by, wanted)


def _room(facts, trials):
    """The least room below that would do, 0 if none would."""
    if not trials.served("more_room"):
        return 0
    said = facts["explanation"]
    if said is not None and "room_needed" in said:
        lacking = said["room_needed"] - said["room_below"]
        if lacking > 0 and trials.would_serve(more_room=lacking):
            return lacking
    low, high = 0, facts["parts"]["total"]
    if not trials.would_serve(more_room=high):
        return 0
    for _ in range(8):
        middle = (low + high) // 2
        if trials.would_serve(more_room=middle):
            high = middle
        else:
            low = middle
    return high


def _of_others(facts, trials):
    """Who else has to give memory back."""
    rows = arithmetic.table(facts)
    if rows["other_processes"] and trials.would_serve(
            more_card=rows["other_processes"]):
        yield _of_processes(facts, rows)
    beside = rows["non_torch"] + rows["unknown"]
    if beside and trials.would_serve(more_card=beside):
        yield Suggestion(
            "end_others",
            f"Free what is allocated past PyTorch: {size(beside)} of the card "
            "are held by this process outside of it"
            + (", or by other processes." if rows["unknown"] else "."),
            beside)


def _of_processes(facts, rows):
    pids = ", ".join(f"{one['pid']} ({size(one['bytes'])})"
                     for one in facts["processes"]
                     if one["pid"] != facts["own_pid"])
    return Suggestion(
        "end_processes", f"End other processes on the card, or use another: "
        f"{pids}.", rows["other_processes"])


def _of_blocks(facts, trials):
    """Blocks whose end serves it: those that keep holes, and each owner's."""
    said = facts["explanation"] or {}
    groups = {}
    for block in facts["blocks"]:
        if block["category"] in _KEPT:
            continue
        groups.setdefault((block["owner"], block["category"]),
                          []).append(block)
    listed = said.get("frees", [])
    if any(block["category"] in _KEPT for block in listed):
        listed = []
    if listed and trials.would_serve(
            frees=[block["address"] for block in listed]):
        yield _of_group(listed, "then whole handles are free")
    enough = _enough(groups, trials)
    if enough and ({block["address"] for block in enough}
                   != {block["address"] for block in listed}):
        yield _of_group(enough, "without them it fits")


def _enough(groups, trials):
    """Blocks of one group whose end serves it; where none of those that are
    tried does, of the largest together, as few groups as do. [] if all do not.
    """
    held = {key: sum(block["bytes"] for block in blocks)
            for key, blocks in groups.items()}
    rising = sorted(groups, key=lambda key: (held[key], key))
    one = [key for key in rising if held[key] >= trials.base.missing]
    # Small blocks of an owner can lie in handles that others keep: that an
    # owner has enough bytes does not mean that they are enough.
    for key in one[:_OWNERS]:
        if _ends(groups[key], trials):
            return _fewest(groups[key], trials)
    falling = [groups[key] for key in reversed(rising)]

    def first(count):
        return [block for blocks in falling[:count] for block in blocks]

    if not falling or not _ends(first(len(falling)), trials):
        return []
    return first(_least(
        len(falling), lambda count: _ends(first(count), trials)))


def _fewest(blocks, trials):
    """Of these, which are enough, the largest that are."""
    falling = sorted(blocks, key=lambda block: (-block["bytes"],
                                                block["address"]))
    return falling[:_least(len(falling), lambda count: _ends(
        falling[:count], trials))]


def _least(most, serves):
    """The least count up to `most`, of which it is known, that serves."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if serves(middle):
            high = middle
        else:
            low = middle
    return high


def _ends(blocks, trials):
    return trials.would_serve(frees=[block["address"] for block in blocks])


def _of_group(blocks, why):
    names = {}
    for block in blocks:
        key = f"{named(block['owner'])} ({block['category']})"
        names[key] = names.get(key, 0) + block["bytes"]
    listed = [f"{size(held)} of {name}" for name, held in sorted(
        names.items(), key=lambda item: -item[1])]
    shown = ", ".join(listed[:3]) + (
        f" and of {len(listed) - 3} more" if len(listed) > 3 else "")
    total = sum(names.values())
    graphs = sum(block["bytes"] for block in blocks
                 if block["category"] == "activation")
    return Suggestion(
        "free", f"Free {shown}, in {len(blocks)} "
        f"block{'s' if len(blocks) != 1 else ''}: {why}."
        + (_OF_GRAPHS if 2 * graphs > total else ""), total,
        blocks=tuple(block["address"] for block in blocks))


def _of_less(facts, trials):
    if trials.fits:
        yield _less(facts, trials.fits)


def _less(facts, fits):
    return Suggestion(
        "ask_less", f"Ask for at most {size(fits)} here, "
        f"{fits / facts['bytes']:.0%} of it; what the program would ask for "
        "afterwards was not tried.", facts["bytes"] - fits, fits)
