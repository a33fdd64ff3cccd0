# SPDX-License-Identifier: Apache-2.0
"""The table: pages that policies copy per cycle, relative to the optimum.

    bazel run //tests/system/planner:table -- [--json | --markdown] [TRACE...]

--markdown is the table of README.md.
Capacity is what is left after transient memory: the pages that are live at
most, by 1.05, 1.5, 2 and 3. Counted are the last three eighths of the cycles.
"""

import json
import os
import subprocess
import sys

from tests.system.planner import trace

MULTIPLES = (1.05, 1.5, 2.0, 3.0)
POLICIES = ("optimum", "lru", "prefix", "today", "new")
_REPEATED = 2  # cycles after the recorded ones, for the optimum's sight


def judge():
    return os.environ.get("PLANNER_JUDGE", "tests/system/planner/judge")


class Figures:
    """Pages in and out per cycle of each policy and capacity."""

    def __init__(self, name, policies=POLICIES, multiples=MULTIPLES):
        text = trace.read(name)
        self.name = name
        self.live = int(text.split("\n", 1)[0].split()[2])
        self.cycles = text.count("\nc\n")
        # Pages that must be there at once, and four on their way.
        self.window = 4 + max(
            len({page for spelled in line.split()[3::2]
                 for page in trace.pages(spelled)})
            for line in set(text.splitlines()) if line.startswith("o "))
        self.capacities = {
            multiple: int(self.live / multiple) for multiple in multiples}
        measured = max(1, self.cycles * 3 // 8)
        rows = []
        for wanted, capacities in (
                (policies, self.capacities.values()),
                (("optimum",), [capacity - self.window
                                for capacity in self.capacities.values()])):
            done = subprocess.run(
                [judge(), ",".join(wanted), ",".join(map(str, capacities)),
                 str(_REPEATED), str(measured)],
                input=text, capture_output=True, text=True, check=True)
            rows += json.loads(done.stdout)
        self._rows = {(row["policy"], row["capacity"]): row for row in rows}

    def row(self, policy, multiple, less=0):
        return self._rows[policy, self.capacities[multiple] - less]

    def ratio(self, policy, multiple, less=0, what="in"):
        """Of the optimum, at a capacity that has `less` pages less.

        Less than a page per cycle counts as one.
        """
        own = self.row(policy, multiple)[what]
        return max(own, 1) / max(self.row("optimum", multiple, less)[what], 1)

    def values(self):
        return {"trace": self.name, "live": self.live, "cycles": self.cycles,
                "window": self.window, "rows": [
                    dict(self.row(policy, multiple), multiple=multiple,
                         times_optimum=round(self.ratio(policy, multiple), 3),
                         times_optimum_without_window=round(
                             self.ratio(policy, multiple, self.window), 3))
                    for multiple in self.capacities for policy in POLICIES]}


def _print(figures):
    print(f"{figures.name}: {figures.live} pages, window {figures.window}")
    for multiple in figures.capacities:
        optimum = figures.row("optimum", multiple)
        cells = [f"{policy} {figures.ratio(policy, multiple):.2f} / "
                 f"{figures.ratio(policy, multiple, what='out'):.2f}"
                 for policy in POLICIES[1:]]
        without = figures.ratio("new", multiple, figures.window)
        print(f"  x {multiple:4} optimum {optimum['in']:5.0f} in "
              f"{optimum['out']:5.0f} out | {' | '.join(cells)} | "
              f"without window {without:.2f}")


def markdown(every):
    """Lines: for each capacity the pages in of each policy."""
    lines = ["| trace | pages | W | " + " | ".join(
        f"×{multiple}" for multiple in MULTIPLES) + " |",
             "|---|---|---|" + "---|" * len(MULTIPLES)]
    for figures in every:
        cells = []
        for multiple in MULTIPLES:
            ratios = [f"{figures.ratio(policy, multiple):.2f}"
                      for policy in POLICIES[1:]]
            ratios[-1] = f"**{ratios[-1]}**"
            without = figures.ratio("new", multiple, figures.window)
            cells.append(" ".join(ratios) + f" ({without:.2f})")
        lines.append(f"| `{figures.name}` | {figures.live} | {figures.window} "
                     f"| {' | '.join(cells)} |")
    return lines


def main(arguments):
    wanted = [name for name in arguments if not name.startswith("--")]
    every = [Figures(name) for name in wanted or trace.names()]
    if "--json" in arguments:
        print(json.dumps([figures.values() for figures in every], indent=1))
    elif "--markdown" in arguments:
        print("\n".join(markdown(every)))
    else:
        print("pages per cycle, in / out, in multiples of the optimum's")
        for figures in every:
            _print(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
