# SPDX-License-Identifier: Apache-2.0
"""One model on cards of 25 to 100 % of its size: the curve of the first page.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: the model and the tokens are the same on every card; a pass computes
as long as the bus needs for half of the model.
"""

from tests.system.speed import clock
from tests.system.speed import inference
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import place
from tests.system.starved import zygote

PERCENT = (25, 30, 40, 50, 60, 70, 80, 90, 95, 100)


def measure(plan, percent):
    """The rows of a card that has so many per cent of the model."""
    stack = sizing.stack(2., 1., plan.curve_model // 2, plan.width)
    room = inference.native(stack)
    card = place.pages(stack.bytes * percent / 100)
    budget = sizing.host_budget("all", room["peak"], card)
    ours = zygote.run(
        jobs.inference, stack, jobs.Where(card, host_budget=budget),
        plan.warm_up, plan.measured, timeout=plan.timeout)
    capacity = card - (room["peak"] - stack.bytes)
    bound = sizing.bound(stack.bytes, capacity,
                         room["passes"][-1]["busy_ns"], ours["bus"], False)
    mean = clock.steady(ours["passes"], plan.warm_up)
    job = rows.Job(
        "curve", f"{percent} % of {sizing.shown(stack.bytes)}",
        **{**plan.about(), "card_bytes": card}, percent=percent,
        capacity=capacity, model_bytes=stack.bytes, host_budget=budget,
        handle_bytes=ours["handle"], faults=ours["faults"])
    job.add("time", mean["ns"] / 1e6, "ms", bound.ns / 1e6,
            "max(bus, compute)")
    job.add("against no cap", mean["ns"] / 1e6, "ms",
            room["passes"][-1]["ns"] / 1e6, "native with room")
    job.add("bound against no cap", bound.ns / 1e6, "ms",
            room["passes"][-1]["ns"] / 1e6, "native with room")
    job.add("in", mean["in"], "bytes", bound.least_in, "least bytes")
    return job.rows
