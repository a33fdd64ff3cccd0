# SPDX-License-Identifier: Apache-2.0
"""Training steps whose parameters, gradients and state exceed the card.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: the least bytes of a step, each way, are all state minus the card.
That bound is naive: an optimizer has no computing to hide its bytes under, and
gradients that are dead need not be copied.
"""

from tests.system.speed import inference
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import zygote

_ROOM = 16 * sizing.GIB


def measure(plan, optimizer, multiple, ratio):
    """The rows of one job of a plan (plans.Plan)."""
    copies = jobs.COPIES[optimizer]
    stack = sizing.stack(multiple, ratio, plan.card, plan.width, copies)
    state = stack.bytes * copies
    room = zygote.run(jobs.training, stack,
                      jobs.Where(3 * state + _ROOM, "native"), optimizer, 2, 1)
    budget = plan.budget(room["peak"])
    ours = zygote.run(
        jobs.training, stack, jobs.Where(plan.card, host_budget=budget),
        optimizer, plan.training_warm_up, plan.measured, 1,
        timeout=plan.timeout)
    bound = sizing.bound(state, plan.card, room["passes"][-1]["busy_ns"],
                         ours["bus"], True)
    job = rows.Job(
        "training", f"{optimizer}, {multiple:g}x of "
        f"{sizing.shown(plan.card)}, host {plan.host}, compute {ratio:g}x bus",
        **plan.about(), capacity=plan.card, model_bytes=state,
        parameter_bytes=stack.bytes, peak_with_room=room["peak"],
        host_budget=budget, handle_bytes=ours["handle"],
        faults=ours["faults"])
    inference.add_passes(job, ours, bound, plan.training_warm_up,
                         share_goal=None)
    # The bound by windows of a recorded step (tests/system/planner), once that
    # is computed for these jobs.
    job.add("bound by windows", None, "ms")
    inference.add_waits(job, ours["waits"], room["waits"],
                        stack.layer_bytes / ours["bus"][0] * 1e9)
    return job.rows
