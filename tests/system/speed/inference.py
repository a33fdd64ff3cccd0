# SPDX-License-Identifier: Apache-2.0
"""Forward passes over parameters that are a multiple of the card.

Each job has a process of its own, and beside it one under PyTorch's allocator
on a card with room, which says how long a pass computes and what it allocates.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: the bound of a pass does not depend on the allocator under test.
"""

from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import zygote

SHARE_GOAL = .95
WAIT_GOAL = 2.  # times the bus time of what the operator reads
_ROOM = 8 * sizing.GIB


def native(stack, waiting=1):
    """The same passes where everything fits, under PyTorch's allocator."""
    return zygote.run(jobs.inference, stack,
                      jobs.Where(2 * stack.bytes + _ROOM, "native"), 2, 2,
                      waiting)


def measure(plan, multiple, ratio):
    """The rows of one job of a plan (plans.Plan)."""
    stack = sizing.stack(multiple, ratio, plan.card, plan.width)
    room = native(stack)
    budget = plan.budget(room["peak"])
    ours = zygote.run(
        jobs.inference, stack, jobs.Where(plan.card, host_budget=budget),
        plan.warm_up, plan.measured, 2, timeout=plan.timeout)
    capacity = plan.card - (room["peak"] - stack.bytes)
    bound = sizing.bound(stack.bytes, capacity,
                         room["passes"][-1]["busy_ns"], ours["bus"], False)
    job = rows.Job(
        "inference", f"{multiple:g}x of {sizing.shown(plan.card)}, host "
        f"{plan.host}, compute {ratio:g}x bus", **plan.about(),
        capacity=capacity, model_bytes=stack.bytes, host_budget=budget,
        handle_bytes=ours["handle"], faults=ours["faults"])
    add_passes(job, ours, bound, plan.warm_up)
    add_waits(job, ours["waits"], room["waits"],
              stack.layer_bytes / ours["bus"][0] * 1e9)
    return job.rows


def add_passes(job, ours, bound, warm_up, share_goal=SHARE_GOAL):
    """Rows of the steady state, of the first passes, and of pinned memory."""
    from tests.system.speed import clock

    mean = clock.steady(ours["passes"], warm_up)
    job.add("time", mean["ns"] / 1e6, "ms", bound.ns / 1e6,
            "max(bus, compute)", least_share=share_goal)
    job.add("bus", bound.bus_ns / 1e6, "ms")
    job.add("compute", bound.compute_ns / 1e6, "ms")
    job.add("in", mean["in"], "bytes", bound.least_in, "least bytes")
    job.add("out", mean["out"], "bytes", bound.least_in, "least bytes in")
    for number, one in enumerate(ours["passes"][:3], 1):
        job.add(f"pass {number}", one["ns"] / 1e6, "ms", mean["ns"] / 1e6,
                "steady pass")
    job.add("pinned before", ours["pinned_before"], "bytes")
    job.add("pinned after", ours["pinned_after"], "bytes")


def add_waits(job, ours, room, bus_ns):
    """Rows of what the program's thread took in operators and in mallocs."""
    operators, mallocs = ours["operators"], ours["mallocs"]
    job.add("operator p50", operators["p50"] / 1e6, "ms")
    job.add("operator p99", operators["p99"] / 1e6, "ms", bus_ns / 1e6,
            "bus time of a layer", most=WAIT_GOAL)
    job.add("operator max", operators["max"] / 1e6, "ms", bus_ns / 1e6,
            "bus time of a layer")
    if mallocs["count"]:
        job.add("malloc p99", mallocs["p99"] / 1e6, "ms",
                room["mallocs"]["p99"] / 1e6, "native with room")
        # Native's has no wait in it, and twice that leaves room for a query.
        job.add("malloc max", mallocs["max"] / 1e6, "ms",
                room["mallocs"]["max"] / 1e6, "native with room", most=2.)
