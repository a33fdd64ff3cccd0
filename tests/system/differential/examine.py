# SPDX-License-Identifier: Apache-2.0
"""One program under both allocators: all that differs, each with its class.

What a first run shows is kept, whatever a second one says: a look at the layout
of memory (workers.Pairs.look) may explain a difference, never take it back. A
look at native runs native alone, whose snapshots change nothing; a look at ours
is at one count, before which nothing is looked at. Either must show up to there
what the first run showed, or the difference stays what it is.
"""

import json

from tests.system.differential import compare, program


def _plain(log, last=None):
    """A log as text, without layouts, up to that count."""
    kept = []
    for each in compare.counts(log):
        kept.append({k: v for k, v in each.items() if k != "layout"})
        if last is not None and each["number"] >= last:
            break
    return json.dumps(kept)


class Examiner:
    """Compares programs and keeps account of what differed."""

    def __init__(self, pairs):
        self.pairs = pairs
        self.programs = 0
        self.runs = 0
        self.looks = {"native": 0, "ours": 0}
        self.refused = 0  # by both at the same step
        self.pending = 0  # counts of blocks that wait for events under both
        self.kept = []  # of each program, the first of each class
        self.classes = {}

    def account(self):
        return {
            "programs": self.programs,
            "runs": self.runs,
            "looks": sum(self.looks.values()),
            "native": self.looks["native"],
            "refused": self.refused,
            "pending": self.pending,
            "classes": self.classes,
            "kept": self.kept,
        }

    def unexplained(self, steps, case):
        """The first difference that nothing explains, or None."""
        self.programs += 1
        while True:
            found = self._compare(steps, case)
            self._keep(found, case["seed"])
            for each in found:
                if each.kind not in compare.EXPLAINED:
                    return each
            if not found or not found[-1].ends():
                return None
            # Only one could serve it: the program goes on as that without it.
            steps = program.without_step(steps, found[-1].path)

    def _compare(self, steps, case):
        self.runs += 1
        native, ours = self.pairs.run(steps, case)
        found = list(compare.differences(steps, native, ours))
        self._count(native, ours)
        layouts = _Layouts(self, steps, case, native, ours)
        for each in found:
            if each.kind in ("reserved", "refused"):
                layouts.explain(each)
        return found

    def _count(self, native, ours):
        for n, o in zip(*(compare.counts(side.get("log", []))
                          for side in (native, ours))):  # fmt: skip
            self.refused += None not in (n.get("refused"), o.get("refused"))
            self.pending += all(
                device[0].get("active.all.current", 0)
                > device[0]["allocation.all.current"]
                for device in (n["statistics"][0], o["statistics"][0])
            )

    def _keep(self, found, seed):
        seen = set()
        for each in found:
            count = self.classes.setdefault(
                each.kind, {"programs": 0, "counts": 0}
            )
            count["counts"] += 1
            if each.kind in seen:
                continue
            seen.add(each.kind)
            count["programs"] += 1
            self.kept.append({"seed": seed, "class": each.kind,
                              "step": each.path, "text": str(each),
                              "said": each.said})  # fmt: skip


class _Layouts:
    """How memory lies in the two, asked for when a bound needs it."""

    def __init__(self, examiner, steps, case, native, ours):
        self.examiner = examiner
        self.program = steps, case
        self.first = {"native": native, "ours": ours}
        self.native = None  # by number of the count

    def explain(self, found):
        """Gives a "reserved" or "refused" difference its class."""
        reserved = found.kind == "reserved"
        if self.program[1]["room"] is None:
            found.given_back = 0  # there is room for all that is cached
        if 0 < found.beyond <= found.given_back:
            found.kind = "kept"
            return
        if self.native is None:
            self.native = self._look("native", "every")
        kept = found.given_back > 0
        layout = self.native.get(found.at)
        if self._within(found, layout, "native"):
            found.kind = ("kept" if kept else
                          "handles" if reserved else "refused")  # fmt: skip
            return
        layout = self._look("ours", found.at).get(found.at)
        if self._within(found, layout, "ours"):
            found.kind = ("kept" if kept else
                          "across" if reserved else "refused")  # fmt: skip
            return
        idle = [("cached", "free", "hold nothing",
                 self.program[1]["room"] is not None),
                ("waited", "waiting", "hold nothing but what waits",
                 found.parted)]  # fmt: skip
        for kind, counted, what, allowed in idle:
            if not (reserved and layout and allowed):
                continue
            handles = layout[found.device][f"{found.pool}_{counted}"]
            found.said += f"{handles} of ours {what}; "
            found.given_back += handles * compare.HANDLE
            if self._within(found, layout, "ours"):
                found.kind = kind
                return
        found.kind = "different"

    def _within(self, found, layout, side):
        if layout is None:
            found.said += f"{side} did not do the same again; "
            return False
        here = layout[found.device]
        handles = sum(here[f"{pool}_pool"] for pool in ("small", "large")
                      if found.pool in ("all", f"{pool}_pool"))  # fmt: skip
        if side == "ours":
            handles += here["across"]
        beyond = found.beyond - found.given_back
        found.said += (f"{beyond / compare.HANDLE:g} handles beyond, "
                       f"{handles} by the layout of {side}; ")  # fmt: skip
        return beyond <= handles * compare.HANDLE

    def _look(self, side, at):
        """{number: layout} of those counts, if all until there is the same."""
        self.examiner.looks[side] += 1
        answer = self.examiner.pairs.look(side, *self.program, at)
        last = None if at == "every" else at
        if "log" not in answer or _plain(answer["log"], last) != _plain(
            self.first[side]["log"], last
        ):
            return {}
        return {each["number"]: each["layout"]
                for each in compare.counts(answer["log"])
                if "layout" in each}  # fmt: skip
