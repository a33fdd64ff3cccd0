# SPDX-License-Identifier: Apache-2.0
"""How fast a cycle can be: bounds by windows, and the schedule's pipeline.

    bazel run //tests/system/planner:bounds -- [TRACE...]

A cycle is cut into windows. A window takes at least its compute time, the time
of the pages that must come in, and that of the pages that must go out; the two
directions of the bus run at the same time. The bound is the best cut.

In: Belady's misses from an empty device, less the capacity, since any pages may
be there when the window begins. New pages are free, and so is what is dead up
to its free. Out: pages written and alive at the window's end, less the
capacity, since these may still be there.

The pipeline is a recurrence: marked pages leave after their use, missing ones
come in order as frames become free. Its marks are the ones of MakeSchedule.
"""

import heapq
import json
import subprocess
import sys

from tests.system.planner import table, trace

_NEVER = 1 << 60
_CUTS = 96  # windows begin and end at so many points of a cycle


class Operator:
    """What an operator does to pages, and what is freed after it."""

    def __init__(self, nanoseconds):
        self.nanoseconds = nanoseconds
        self.read, self.written, self.new, self.freed = [], [], [], []

    def pages(self):
        return self.read + self.written + self.new


def last_cycle(text):
    cycles, operators = [], []
    for line in text.splitlines():
        kind, *parts = line.split(" ")
        if kind == "o":
            operator = Operator(int(parts[0]))
            for access, spelled in zip(parts[1::2], parts[2::2]):
                {"r": operator.read, "w": operator.written,
                 "n": operator.new}[access].extend(trace.pages(spelled))
            operators.append(operator)
        elif kind == "f":
            if not operators:
                operators.append(Operator(0))
            operators[-1].freed.extend(trace.pages(parts[0]))
        elif kind == "c":
            cycles.append(operators)
            operators = []
    return cycles[-1]


class Rates:
    """Nanoseconds per page. `both` is per page while both directions run."""

    def __init__(self, into, out, both=0.0):
        self.into, self.out, self.both = into, out, both

    def least(self, pages_in, pages_out):
        return max(pages_in * self.into, pages_out * self.out,
                   (pages_in + pages_out) * self.both)


def _next_uses(operators):
    """Per operator and page: the operator of its next use.

    _NEVER: none, or the page is freed and created again before it.
    """
    soonest, following = {}, [None] * len(operators)
    for index in range(len(operators) - 1, -1, -1):
        operator = operators[index]
        following[index] = {page: soonest.get(page, _NEVER)
                            for page in operator.pages()}
        soonest.update((page, index)
                       for page in operator.read + operator.written)
        soonest.update((page, _NEVER) for page in operator.new)
    return following


def misses(operators, following, start, capacity):
    """Belady's misses of operators [start, e), for every e from start on.

    One run serves all ends: what is not used before an end is as far as can be.
    """
    resident, heap, count = {}, [], 0
    counts = [0]
    for index in range(start, len(operators)):
        operator = operators[index]
        used = following[index]
        count += sum(page not in resident
                     for page in operator.read + operator.written)
        for page, time in used.items():
            resident[page] = time
            heapq.heappush(heap, (-time, page))
        kept = []
        while len(resident) > capacity and heap:
            entry = heapq.heappop(heap)
            if resident.get(entry[1]) != -entry[0]:
                continue
            if entry[1] in used:
                kept.append(entry)
            else:
                del resident[entry[1]]
        for entry in kept:
            heapq.heappush(heap, entry)
        for page in operator.freed:
            resident.pop(page, None)
        counts.append(count)
    return counts


def _outs(operators, start):
    """Pages written since `start` that are alive, for every end."""
    written, counts = set(), [0]
    for operator in operators[start:]:
        written.update(operator.written, operator.new)
        written.difference_update(operator.freed)
        counts.append(len(written))
    return counts


def lower(operators, capacity, rates, compute=1.0, cuts=_CUTS):
    """The bound, in nanoseconds; `compute` is a factor of compute times."""
    count = len(operators)
    points = sorted({round(i * count / cuts) for i in range(cuts + 1)})
    following = _next_uses(operators)
    elapsed = [0.0]
    for operator in operators:
        elapsed.append(elapsed[-1] + operator.nanoseconds * compute)
    best = {0: 0.0}
    for start in points[:-1]:
        into = misses(operators, following, start, capacity)
        out = _outs(operators, start)
        for end in points:
            if end > start:
                window = max(
                    elapsed[end] - elapsed[start],
                    rates.least(max(0, into[end - start] - capacity),
                                max(0, out[end - start] - capacity)))
                best[end] = max(best.get(end, 0.0), best[start] + window)
    return best[count]


def marks(name, capacity, window):
    """Numbers of the uses after which a page leaves, frees counted."""
    done = subprocess.run(
        [table.judge(), "schedule", str(capacity), str(window)],
        input=trace.read(name), capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


class Pipeline:
    """A device, two directions of the bus and two threads."""

    LEAVE, FETCH = 60e3, 45e3  # nanoseconds of the threads, for each page

    def __init__(self, operators, leaving, capacity, rates, compute):
        self._operators, self._leaving = operators, leaving
        self._rates, self._compute = rates, compute
        self._frames = [0.0] * capacity
        self._resident, self._dirty, self._live = {}, set(), set()
        self._up = self._down = self._fetch = self._leave = self._now = 0.0
        self.into = self.out = self.unplanned = 0

    def _evict(self, page, after):
        if page in self._dirty:
            self._down = max(self._down, after) + self._rates.out
            after = self._down
            self._dirty.discard(page)
            self.out += 1
        self._leave = max(self._leave, after) + self.LEAVE
        heapq.heappush(self._frames, self._leave)
        del self._resident[page]

    def _frame(self, pinned):
        if not self._frames:
            self.unplanned += 1
            self._evict(min((page for page in self._resident
                             if page not in pinned), key=self._resident.get),
                        self._now)
        return heapq.heappop(self._frames)

    def _run(self, number, operator):
        ready, pinned = self._now, set(operator.pages())
        for page in operator.pages():
            if page not in self._resident:
                frame = self._frame(pinned)
                if page in operator.new and page not in self._live:
                    ready = max(ready, frame)
                else:
                    self._fetch = max(self._fetch, frame) + self.FETCH
                    self._up = max(self._up, self._fetch) + self._rates.into
                    ready = max(ready, self._up)
                    self.into += 1
            self._live.add(page)
            self._resident[page] = self._now
        self._now = ready + operator.nanoseconds * self._compute
        self._dirty.update(operator.written, operator.new)
        for page in operator.pages():
            if number in self._leaving and page in self._resident:
                self._evict(page, self._now)
            number += 1
        for page in operator.freed:
            if page in self._resident:
                del self._resident[page]
                heapq.heappush(self._frames, self._now)
            self._dirty.discard(page)
            self._live.discard(page)
            number += 1
        return number

    def cycle(self):
        """Nanoseconds of one more cycle."""
        began, number = self._now, 0
        self.into = self.out = self.unplanned = 0
        for operator in self._operators:
            number = self._run(number, operator)
        return self._now - began


def steady(pipeline, cycles=5):
    for _ in range(cycles - 1):
        pipeline.cycle()
    return pipeline.cycle()


def row(name, multiple, ratio, rates, windows=(1, 2)):
    """Share of the bound at a ratio of compute to the bus's least time."""
    figures = table.Figures(name, ("optimum",), (multiple,))
    operators = last_cycle(trace.read(name))
    capacity = figures.capacities[multiple]
    total = sum(operator.nanoseconds for operator in operators)
    least = max(1, figures.live - capacity) * rates.into
    compute = ratio * least / total
    best = None
    for times in windows:
        leaving = marks(name, capacity, times * figures.window)
        pipeline = Pipeline(operators, leaving, capacity, rates, compute)
        time = steady(pipeline)
        if best is None or time < best[0]:
            best = time, pipeline
    bound = lower(operators, capacity, rates, compute)
    optimum = figures.row("optimum", multiple)["in"] * rates.into
    time, pipeline = best
    return {"trace": name, "multiple": multiple, "ratio": ratio,
            "milliseconds": time / 1e6, "of_bound": bound / time,
            "of_simple_bound": max(optimum, total * compute) / time,
            "in": pipeline.into, "out": pipeline.out,
            "unplanned": pipeline.unplanned}


# Pages of 32 MiB on the simulated h200: 55 GB/s each way.
H200 = Rates(into=610e3, out=610e3)


def main(arguments):
    for name in arguments or trace.names():
        for multiple in table.MULTIPLES:
            for ratio in (0.1, 1.0, 2.0):
                values = row(name, multiple, ratio, H200)
                print("{trace:14} x {multiple:4} compute/bus {ratio:3}: "
                      "{milliseconds:7.1f} ms, of the bound {of_bound:.2f}, "
                      "of max(optimum, compute) {of_simple_bound:.2f}, "
                      "in {in:5} out {out:5} unplanned {unplanned}".format(
                          **values), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
