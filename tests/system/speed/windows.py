# SPDX-License-Identifier: Apache-2.0
"""The bound by windows of a recorded step, and the optimum's bytes.

Pure functions over the text of a trace (tests/system/planner/trace.py). Pages
that an operator makes come in free, a dead gradient needs no copy, and pages
that were written go out.

Thread-safety: yes.
Lifetime: values only.
Errors: IndexError for a trace without a cycle.
Invariants: the bound is that of tests/system/planner/bounds.py; a step that
repeats the last cycle for ever can take no less.
"""

import dataclasses

from tests.system.planner import bounds

CUTS = 48  # points of a step at which windows begin and end


@dataclasses.dataclass(frozen=True)
class Windows:
    """What a step must take on a device of `capacity` bytes.

    ns: the bound. optimum_in: bytes that Belady's policy copies in per step.
    """

    ns: float
    optimum_in: int
    capacity: int


def live(text: str, page: int) -> int:
    """Most bytes of pages that are live at a time; `page`: bytes of one."""
    return int(text.split("\n", 1)[0].split()[2]) * page


def optimum(operators: list, capacity: int) -> int:
    """Pages that Belady's policy copies in, in a cycle among equal ones.

    operators: of one cycle (bounds.Operator). capacity: in pages. The cycle
    before fills the device, and the one behind is the future that counts.
    """
    repeated = operators * 3
    counts = bounds.misses(repeated, bounds._next_uses(repeated), 0, capacity)
    return counts[2 * len(operators)] - counts[len(operators)]


def of_trace(text: str, page: int, capacity: int, bus: tuple[float, float],
             cuts: int = CUTS) -> Windows:
    """The Windows of the trace's last cycle.

    page: bytes of a page. capacity: bytes that pages may take of the device.
    bus: bytes per second to the device, and back.
    """
    operators = bounds.last_cycle(text)
    pages = capacity // page
    rates = bounds.Rates(page / bus[0] * 1e9, page / bus[1] * 1e9)
    return Windows(bounds.lower(operators, pages, rates, cuts=cuts),
                   optimum(operators, pages) * page, capacity)
