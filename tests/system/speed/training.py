# SPDX-License-Identifier: Apache-2.0
"""Training steps whose parameters, gradients and state exceed the card.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: the least bytes of a step, each way, are all state minus the card.
That bound is naive: an optimizer has no computing to hide its bytes under, and
gradients that are dead need not be copied. The bound by windows knows both; it
is that of a step recorded with room.
"""

from tests.system.planner import trace
from tests.system.speed import clock
from tests.system.speed import inference
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.speed import windows
from tests.system.starved import zygote

SGD_SHARE, ADAMW_SHARE = .85, .9  # of the bound by windows, from 1.5 times on
OPTIMUM_GOAL = 1.15
LEAST_GOALS = {1.05: 2.2, 2.: 1.6}  # by the multiple
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
    text = zygote.run(jobs.recorded, stack, jobs.Where(3 * state + _ROOM),
                      optimizer, timeout=plan.timeout)
    transient = max(0, room["peak"] - windows.live(text, trace.PAGE_BYTES))
    add_windows(job, clock.steady(ours["passes"], plan.training_warm_up),
                windows.of_trace(text, trace.PAGE_BYTES, plan.card - transient,
                                 ours["bus"]), state, optimizer, multiple)
    inference.add_waits(job, ours["waits"], room["waits"],
                        stack.layer_bytes / ours["bus"][0] * 1e9)
    return job.rows


def add_windows(job, mean, found, state, optimizer, multiple):
    """Rows of the bound by windows, and of bytes against two least ones.

    mean: of the measured steps. found: windows.Windows of a recorded one.
    state: bytes of parameters, gradients and the optimizer's state.
    """
    # Below 1.5 times the engine's window decides, and the time has no goal.
    share = SGD_SHARE if optimizer == "SGD" else ADAMW_SHARE
    job.add("bound by windows", found.ns / 1e6, "ms")
    job.add("time by windows", mean["ns"] / 1e6, "ms", found.ns / 1e6,
            "bound by windows",
            least_share=share if multiple >= 1.5 else None)
    job.add("in/optimum", mean["in"], "bytes", found.optimum_in, "Belady's",
            most=OPTIMUM_GOAL)
    job.add("in/(state - C)", mean["in"], "bytes",
            max(0, state - found.capacity), "all state - capacity",
            most=LEAST_GOALS.get(multiple))
