# SPDX-License-Identifier: Apache-2.0
"""The lines of attribution.py: what is more, how sure, and its share of a step.

Beside what every line has: `difference` and `difference_range`, of pairs
(paired.py); how often it `occurs` in a training step, and its share of the step
without anything of ours, with the ends of its range: `shares`, by device.
"""

from stratalloc.bench import paired

_NODE_GOAL = 100.0
_SHARE_GOAL = 0.03
DEVICES = ("meta", "cpu")

# what, its line, what the other side is called, how often it occurs in a step,
# the goal of the difference
_PARTS = (
    ("module", "nn.Module call", "no wrapper", "modules", None),
    ("root", "nn.Module call, a root's", "no wrapper", "roots", None),
    ("node", "autograd node", "not followed", "nodes", _NODE_GOAL),
    # A part of the line before, so that it adds nothing.
    ("node_ours", "autograd node, of that ours", "an empty callback", None,
     None),
    ("leaf", "autograd node of a leaf", "not followed", "leaves", None),
    ("account", "malloc/free, accounted", "no accounts", "mallocs", None),
    ("first", "malloc/free, a scope's first", "in no scope", "mallocs", None),
)


def measured(worker, entry, rounds):
    """What the worker measures: parts, and the step whole and summed."""
    def pairs(what):
        return [worker.ask("attribution", what=what) for _ in range(rounds)]

    def line(name, answers, baseline):
        sides = [[value for answer in answers for value in answer[side]]
                 for side in ("ours", "without")]
        row = entry(name, *sides, baseline)
        row["difference"], *row["difference_range"] = paired.difference(*sides)
        row["ratio"], *row["ratio_range"] = paired.ratio(*sides)
        row.update(pairs=len(sides[0]), occurs={}, shares={})
        return row

    counted = {device: worker.ask("attribution_counts", device=device)
               for device in DEVICES}
    parts = []
    for what, name, baseline, count, goal in _PARTS:
        row = line(name, pairs(what), baseline)
        if goal is not None:
            row["goal"] = f"<= +{goal:g}"
            row["pass"] = row["difference"] <= goal
        if count is not None:
            row["occurs"] = {device: counted[device][count]
                             for device in DEVICES}
        parts.append(row)
    steps = []
    for device in DEVICES:
        answers = pairs(f"step_{device}")
        optimizer = line(f"SGD.step, {device}",
                         [answer["optimizer"] for answer in answers],
                         "no wrapper")
        optimizer["occurs"] = {device: 1}
        parts.append(optimizer)
        whole = line(f"training step, {device}",
                     [answer["whole"] for answer in answers], "nothing of ours")
        whole["shares"][device] = [ratio - 1 for ratio in
                                   (whole["ratio"], *whole["ratio_range"])]
        give_shares(parts, device, whole["baseline"])
        steps += [whole, summed(parts, whole, device)]
        for row in steps[-2:]:
            row["goal"] = f"<= {_SHARE_GOAL:.0%}"
            row["pass"] = row["shares"][device][0] <= _SHARE_GOAL
    return parts + steps


def give_shares(parts, device, step_ns):
    for part in parts:
        if device in part["occurs"]:
            part["shares"][device] = [
                part["occurs"][device] * more / step_ns
                for more in (part["difference"], *part["difference_range"])]


def summed(parts, whole, device):
    """The step as it would be if each part took what it takes alone.

    Its range adds the ends of theirs, which is wider than 95 %.
    """
    base = whole["baseline"]
    share, low, high = (
        sum(part["shares"][device][i] for part in parts
            if device in part["shares"]) for i in range(3))
    return {**whole, "name": f"{whole['name']}, sum of its parts",
            "value": base * (1 + share), "difference": base * share,
            "difference_range": [base * low, base * high], "ratio": 1 + share,
            "ratio_range": [1 + low, 1 + high],
            "shares": {device: [share, low, high]}, "spread": None}


COLUMNS = ("benchmark", "ours, ns", "without, ns", "more", "95%", "in a step",
           *(f"of it, {device}" for device in DEVICES))


def cells(row):
    """Of one line in the table: as COLUMNS."""
    low, high = row["difference_range"]
    return (row["name"], f"{row['value']:.0f}",
            f"{row['baseline_name']} {row['baseline']:.0f}",
            f"{row['difference']:+.0f}", f"{low:+.0f}..{high:+.0f}",
            ", ".join(map(str, sorted(set(row["occurs"].values())))),
            *map(share_text, (row["shares"].get(device)
                              for device in DEVICES)))


def share_text(share):
    if share is None:
        return "-"
    middle, low, high = (100 * each for each in share)
    return f"{middle:.2f}% ({low:.2f}..{high:.2f})"
