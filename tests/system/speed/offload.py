# SPDX-License-Identifier: Apache-2.0
"""The same passes by other means: what a user can write without stratalloc.

accelerate's cpu_offload, and groups of layers that a side stream brings ahead
of their use: both under PyTorch's allocator on the same card. They keep nothing
on the card from pass to pass, so they move the whole model in every pass.

Thread-safety: one caller at a time: it forks.
Lifetime: the processes end with their jobs.
Errors: zygote.Refused, zygote.Died.
Invariants: the job, the card and the bound are those of inference.measure().
"""

import importlib.util
import inspect

from tests.system.speed import clock
from tests.system.speed import inference
from tests.system.speed import jobs
from tests.system.speed import rows
from tests.system.speed import sizing
from tests.system.starved import zygote

_GROUP = 4  # layers that travel together


def by_stratalloc():
    import stratalloc

    stratalloc.enable()


def by_accelerate(model):
    import accelerate

    accelerate.cpu_offload(model, execution_device=0)


class ByGroups:
    def __init__(self, layers, size):
        import torch

        self.cuda, self.arrived = torch.cuda, {}
        self.side = torch.cuda.Stream()
        self.groups = [layers[i:i + size] for i in range(0, len(layers), size)]
        for layer in layers:
            layer.host = layer.weight.data
        for number, group in enumerate(self.groups):
            group[0].register_forward_pre_hook(
                lambda *_, number=number: self.begin(number))
            group[-1].register_forward_hook(
                lambda *_, number=number: self.end(number))

    def fetch(self, number):
        if number in self.arrived:
            return
        # What the last group left is free once its kernels are over.
        self.side.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(self.side):
            for layer in self.groups[number]:
                layer.weight.data = layer.host.to("cuda", non_blocking=True)
            self.arrived[number] = self.side.record_event()

    def begin(self, number):
        self.fetch(number)
        self.cuda.current_stream().wait_event(self.arrived[number])
        self.fetch((number + 1) % len(self.groups))

    def end(self, number):
        for layer in self.groups[number]:
            layer.weight.data = layer.host
        del self.arrived[number]


def lines(*programs):
    """Lines that a user writes: neither blank, nor a comment, nor the head."""
    found = [line.strip() for program in programs
             for line in inspect.getsource(program).splitlines()[
                 inspect.isfunction(program):]]
    return sum(bool(line) and not line.startswith("#") for line in found)


def passes(stack, where, means, warm_up, measured):
    """Forward passes by one of the means: "accelerate" or "groups"."""
    import torch

    where.enter()
    if means == "groups":
        model = stack.build("meta")
        for layer in model:
            layer.weight = torch.nn.Parameter(
                torch.empty(layer.weight.shape, dtype=torch.bfloat16,
                            pin_memory=True), requires_grad=False)
        ByGroups(list(model), _GROUP)
    else:
        model = stack.build("meta").to_empty(device="cpu")
        by_accelerate(model)
    x, noted = stack.input(), clock.Passes()
    with torch.no_grad():
        for _ in range(warm_up + measured):
            with noted:
                model(x)
    return {"passes": noted.rows, "bus": clock.bus(),
            "peak": torch.cuda.max_memory_allocated()}


# (name, its means, what the user writes)
_OTHERS = (("accelerate cpu_offload", "accelerate", by_accelerate),
           ("group offload by hand", "groups", ByGroups))


def measure(plan, multiple, ratio):
    """The rows of ours and of the others."""
    stack = sizing.stack(multiple, ratio, plan.card, plan.width)
    room = inference.native(stack)
    budget = plan.budget(room["peak"])
    ours = zygote.run(
        jobs.inference, stack, jobs.Where(plan.card, host_budget=budget),
        plan.warm_up, plan.measured, timeout=plan.timeout)
    capacity = plan.card - (room["peak"] - stack.bytes)
    bound = sizing.bound(stack.bytes, capacity,
                         room["passes"][-1]["busy_ns"], ours["bus"], False)
    taken = clock.steady(ours["passes"], plan.warm_up)["ns"] / 1e6
    about = {**plan.about(), "capacity": capacity, "host_budget": budget,
             "model_bytes": stack.bytes, "handle_bytes": ours["handle"],
             "faults": ours["faults"]}
    where = (f"{multiple:g}x of {sizing.shown(plan.card)}, "
             f"compute {ratio:g}x bus")
    found = _rows(f"stratalloc, {where}", about, ours, plan.warm_up, bound,
                  by_stratalloc)
    for name, means, program in _OTHERS:
        if means == "accelerate" and not importlib.util.find_spec(means):
            print(f"left out: {name}: {means} is not installed", flush=True)
            continue
        other = zygote.run(passes, stack, jobs.Where(plan.card, "native"),
                           means, 2, 2, timeout=plan.timeout)
        found += _rows(f"{name}, {where}", about, other, 2, bound, program,
                       taken)
    return found


def _rows(name, about, result, warm_up, bound, program, ours=None):
    mean = clock.steady(result["passes"], warm_up)
    job = rows.Job("offload", name, **about)
    job.add("time", mean["ns"] / 1e6, "ms", bound.ns / 1e6,
            "max(bus, compute)")
    if ours is not None:
        job.add("against ours", mean["ns"] / 1e6, "ms", ours, "stratalloc")
    job.add("in", mean["in"], "bytes", bound.least_in, "least bytes")
    job.add("peak", result["peak"], "bytes")
    job.add("written", lines(program), "lines")
    return job.rows
