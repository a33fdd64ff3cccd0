# SPDX-License-Identifier: Apache-2.0
"""Requests that threads answer from a model larger than the card.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: every request is one forward pass, whose answer the thread reads.
"""

from tests.system.speed import clock
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import place
from tests.system.starved import zygote

THREADS, MULTIPLE = 8, 1.4
_ROOM = 8 * sizing.GIB


def serve(stack, where, threads, requests, warm_up):
    """Answers the requests by so many threads; virtual latencies and time."""
    import queue
    import threading

    import torch

    from tests.system.speed import waits  # imports torch

    where.enter()
    model = stack.build()
    now = clock.driver().cudasim_virtual_now_ns
    latencies, errors = [], []
    waiting = queue.SimpleQueue()
    for number in range(requests):
        waiting.put(number)

    def answer():
        with torch.no_grad():
            return model(stack.input())[:1].cpu()

    def work():
        try:
            while True:
                waiting.get_nowait()
                began = now()
                answer()
                latencies.append(now() - began)
        except queue.Empty:
            return
        except Exception as error:  # pylint: disable=broad-except
            errors.append(f"{type(error).__name__}: {error}"[:500])

    for _ in range(warm_up):
        answer()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    began = now()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"ns": now() - began, "answered": len(latencies),
            "latency": waits.quantiles(latencies),
            "faults": place.faults() + errors, "moved": place.moved(),
            "peak": torch.cuda.max_memory_allocated()}


def measure(plan, ratio):
    """The rows of a model 1.4 times the card, beside native with room."""
    stack = sizing.stack(MULTIPLE, ratio, plan.card, plan.width)
    room = zygote.run(serve, stack, jobs.Where(2 * stack.bytes + _ROOM,
                                               "native"),
                      THREADS, plan.requests, 1)
    budget = plan.budget(room["peak"])
    ours = zygote.run(serve, stack, jobs.Where(plan.card, host_budget=budget),
                      THREADS, plan.requests, plan.warm_up,
                      timeout=plan.timeout)
    job = rows.Job(
        "serving", f"{THREADS} threads, {MULTIPLE}x of "
        f"{sizing.shown(plan.card)}, host {plan.host}, compute {ratio:g}x bus",
        **plan.about(), capacity=plan.card, model_bytes=stack.bytes,
        host_budget=budget, faults=ours["faults"])
    job.add("answered", ours["answered"], "requests")
    for figure, unit, read in (
            ("requests", "1/s", lambda one: one["answered"] / one["ns"] * 1e9),
            ("latency p50", "ms", lambda one: one["latency"]["p50"] / 1e6),
            ("latency p99", "ms", lambda one: one["latency"]["p99"] / 1e6)):
        job.add(figure, read(ours), unit)
        job.add(f"{figure} against native", read(ours), unit, read(room),
                "native with room")
    job.add("in per request", ours["moved"]["in"]
            / (ours["answered"] + plan.warm_up), "bytes",
            stack.bytes - plan.card, "model - card")
    return job.rows
