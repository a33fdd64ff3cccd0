# SPDX-License-Identifier: Apache-2.0
"""The verdict: why there was no memory, as one word and one sentence.

judge() decides from the facts (facts.py), the card's arithmetic and what the
core found when it made the request again on a copy of the device's blocks. The
first rule that holds wins, from what no other remedy changes (the request is
larger than the card) to what always holds (live tensors have the memory). A
sentence has only what was counted or tried.
"""

import dataclasses

from stratalloc._oom import arithmetic
from stratalloc._rendering.table import cut, printable
from stratalloc.sizes import format_size as size

# What `kind` may be, with the words of section headings.
KINDS = {
    "capacity": "over the device's capacity",
    "limit": "over the configured limit",
    "tiers_full": "the host and the disk have no room for what would have to "
                  "leave the device",
    "working_set": "an operator's operands do not fit beside what cannot leave",
    "pending": "freed memory that other streams still use",
    "private_pools": "reserved by private or graph pools",
    "fragmented": "fragmented",
    "other_processes": "other processes on the card",
    "non_torch": "this process outside of PyTorch",
    "unknown": "others on the card",
    "live": "held by live tensors",
    "came_free": "memory came free meanwhile, or none was lacking",
}


_LONGEST = 120  # cells of a name


def named(name):
    """A name in a sentence: on one line, and not longer than that."""
    return cut(printable(name), _LONGEST)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The cause of a refusal.

    Attributes:
      kind: "capacity", "limit", "tiers_full", "working_set", "pending",
        "private_pools", "fragmented", "other_processes", "non_torch",
        "unknown", "live" or "came_free".
      sentence: the same for people, with sizes.
      bytes: by how much the limit that refused it is too low: of a scope, of
        the program, of the card, or of the tiers below; 0 if nothing is lacking
        any more.
    """

    kind: str
    sentence: str
    bytes: int = 0


def judge(facts, trials):
    """The Verdict; `trials` is a trials.Trials of the same refusal."""
    if facts["kind"] == "operator":
        return _of_operator(facts, trials)
    rules = (_scope_limit, _capacity, _over_limit, _tiers_full, _pending,
             _came_free, _limit_helps, _private_pools, _fragmented, _others)
    for rule in rules:
        verdict = rule(facts, trials)
        if verdict is not None:
            return verdict
    return _live(facts, trials)


def _there(facts):
    """What the allocator may have of the card: of what is allowed, what the
    card has."""
    parts = facts["parts"]
    return min(parts["allowed"], parts["ours"] + parts["free"])


def _scope_limit(facts, trials):
    limits = refusing_limits(facts)
    if not limits:
        return None
    limit = limits[0]
    return Verdict(
        "limit",
        f"{named(limit['owner'])} is limited to {size(limit['bytes'])} "
        f"(stratalloc.limit) and owns {size(limit['owned'])}, to which "
        f"{size(facts['rounded'])} would have come.",
        limit["owned"] + facts["rounded"] - limit["bytes"])


def refusing_limits(facts):
    """The rows of `limits` that refuse the request."""
    said = facts["explanation"]
    if said is None or said.get("served_by") != "limit":
        return []
    owner = facts["owner"]
    # "/" and "." part paths (scopes).
    return [limit for limit in facts["limits"]
            if (owner + "/").startswith((limit["owner"] + ".",
                                         limit["owner"] + "/"))
            and limit["owned"] + facts["rounded"] > limit["bytes"]]


def _capacity(facts, trials):
    asked, total = facts["rounded"], facts["parts"]["total"]
    if asked <= total:
        return None
    return Verdict("capacity", f"{size(asked)} are more than the {size(total)} "
                   "that the card has.", asked - total)


def _over_limit(facts, trials):
    asked, parts = facts["rounded"], facts["parts"]
    if asked <= parts["allowed"]:
        return None
    return Verdict(
        "limit", f"{size(asked)} are more than the {size(parts['allowed'])} of "
        f"the card's {size(parts['total'])} that {_who_limits(facts)} allows.",
        asked - parts["allowed"])


def _who_limits(facts):
    # A fraction is of gpu_limit where that is set, so it limits wherever it is.
    return "the memory fraction" if facts["parts"]["fraction"] < 1 \
        else "gpu_limit"


def _tiers_full(facts, trials):
    said = facts["explanation"]
    if said is None or said.get("served_by") not in ("eviction", "headroom"):
        return None
    lacking = said["room_needed"] - said["room_below"]
    if lacking <= 0 or trials.base.served:
        return None
    return Verdict(
        "tiers_full",
        f"{size(said['room_needed'])} more would have had to leave the device, "
        f"and the host and the disk have room for {size(said['room_below'])}.",
        lacking)


def _pending(facts, trials):
    pending = facts["parts"]["held"]["pending"]
    if trials.base.served or not pending:
        return None
    if not trials.served("streams_end"):
        return None
    why = (", whom nobody can wait for while a CUDA graph is captured"
           if facts["parts"]["capturing"] else "")
    return Verdict(
        "pending", f"{size(pending)} are freed and other streams still use "
        f"them{why}: with them it would have been served.",
        trials.base.missing)


def _came_free(facts, trials):
    if not trials.base.served:
        return None
    return Verdict(
        "came_free", "On a copy of the device's blocks as they are now the same "
        "request is served: what was lacking came free since, or it was no "
        "memory of the card (what is away keeps its addresses, and of these a "
        "device has a limited number, too).")


def _limit_helps(facts, trials):
    parts, missing = facts["parts"], trials.base.missing
    if parts["allowed"] >= parts["total"] or not missing:
        return None
    if not trials.served("more_limit"):
        return None
    return Verdict(
        "limit", f"{_who_limits(facts).replace('the ', 'The ', 1)} allows "
        f"{size(parts['allowed'])} of the card's {size(parts['total'])}: with "
        f"{size(missing)} more it would have been served, and the card has "
        "them.", missing)


def _private_pools(facts, trials):
    free = facts["parts"]["held"]["in_private_pools"]
    if not free or not trials.served("pools_end"):
        return None
    return Verdict(
        "private_pools", f"{size(free)} are free and reserved by private pools "
        "(of CUDA graphs and MemPools), which alone may use them: with them it "
        "would have been served.", trials.base.missing)


def _fragmented(facts, trials):
    parts = facts["parts"]
    held = parts["held"]
    stays = facts["staying"]
    if parts["capturing"] or facts["why_no_tiering"]:
        stays = held["allocated"] + held["pending"]
    room = _there(facts) - min(stays, _there(facts)) - held["in_private_pools"]
    if room < facts["rounded"]:
        # What cannot leave is counted in whole handles.
        stays = held["allocated"] + held["pending"]
        room = _there(facts) - stays - held["in_private_pools"]
        if room < facts["rounded"]:
            return None
        by = "live tensors, in handles that these keep,"
    else:
        by = "what cannot leave,"
    # Next to full, the holders are the cause and not the last pieces: the same
    # rule as that of the exception (python_shim/refusals/cause.cc).
    if 4 * room < _there(facts):
        return None
    largest = trials.fits
    size_of_it = "" if largest is None else (
        f": the largest request that would be served is {size(largest)}")
    return Verdict(
        "fragmented", f"Of {size(_there(facts))}, {size(stays)} are held by "
        f"{by} and the {size(room)} beside it would be enough, "
        f"but they are in pieces{size_of_it}.", trials.base.missing)


def _others(facts, trials):
    rows = arithmetic.table(facts)
    named = {"other_processes": "other processes on the card",
             "non_torch": "this process outside of PyTorch (its context, NCCL, "
                          "cuBLAS)",
             "unknown": "others on the card (other processes, or this one "
                        "outside of PyTorch: the driver does not say which)"}
    kind = max(named, key=lambda key: rows[key])
    # Of two that would both do, the one that has more is the reason.
    if rows[kind] <= rows["allocated"] or not trials.served("more_card"):
        return None
    return Verdict(
        kind, f"{size(rows[kind])} of the card's "
        f"{size(facts['parts']['total'])} are held by {named[kind]}: "
        "without that it would have been served.", trials.base.missing)


def _live(facts, trials):
    rows = arithmetic.table(facts)
    there = _there(facts)
    return Verdict(
        "live", f"{size(facts['rounded'])} do not fit: of {size(there)} that "
        "PyTorch may have here, "
        f"{size(rows['allocated'])} are held by live tensors{_most(facts)}.",
        trials.base.missing)


def _most(facts):
    """Who holds most of the device, behind a sentence."""
    return "".join(
        f"; the most, {size(row['device'])}, by {named(row['owner'])} "
        f"({row['category']})" for row in facts["holders"][:1])


def _of_operator(facts, trials):
    """Of one that the guard did not run: it asked for no block."""
    name, asked = named(facts["operator"]), facts["bytes"]
    parts = facts["parts"]
    if asked > parts["total"]:
        return Verdict("capacity", f"{name} needs {size(asked)} at once, more "
                       f"than the {size(parts['total'])} that the card has.",
                       asked - parts["total"])
    if asked > parts["allowed"]:
        return Verdict(
            "limit", f"{name} needs {size(asked)} at once, more than the "
            f"{size(parts['allowed'])} of the card's {size(parts['total'])} "
            f"that {_who_limits(facts)} allows.", asked - parts["allowed"])
    if trials.base.served:
        return _came_free(facts, trials)
    if trials.served("more_room"):
        return Verdict(
            "tiers_full", f"{name} needs {size(asked)} at once, and for that "
            "more would have had to leave the device than the host and the "
            "disk have room for.", trials.base.missing)
    return Verdict(
        "working_set", f"{name} needs {size(asked)} at once, which do not fit "
        f"into {size(_there(facts))} beside what cannot leave: "
        f"{size(trials.base.missing)} are missing. Allocated are "
        f"{size(parts['held']['allocated'])}{_most(facts)}.",
        trials.base.missing)
