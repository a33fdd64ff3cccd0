# SPDX-License-Identifier: Apache-2.0
"""The jobs: a stack of Linear layers that answers, or that is trained.

Each function runs in a child of the zygote, before that child's first use of
CUDA, and returns plain values.

Thread-safety: one job per process.
Lifetime: the process ends with the job.
Errors: what torch raises; the zygote hands it on as Refused.
Invariants: numbers are off, so no value of a tensor is ever read.
"""

import dataclasses

from tests.system.speed import clock
from tests.system.starved import place

_ITEM = 2  # bytes of a bfloat16


@dataclasses.dataclass(frozen=True)
class Stack:
    """A stack of equal Linear layers without bias, in bfloat16."""

    width: int
    layers: int
    tokens: int

    @property
    def layer_bytes(self):
        return self.width * self.width * _ITEM

    @property
    def bytes(self):
        return self.layers * self.layer_bytes

    def build(self, device="cuda"):
        """The layers, whose weights torch initialises where they are."""
        import torch
        from torch import nn

        return nn.Sequential(*(
            nn.Linear(self.width, self.width, bias=False, device=device,
                      dtype=torch.bfloat16) for _ in range(self.layers)))

    def input(self):
        import torch

        return torch.zeros(self.tokens, self.width, dtype=torch.bfloat16,
                           device="cuda")


@dataclasses.dataclass(frozen=True)
class Where:
    """The device of a job, and the allocator that serves it.

    `limit` caps what stratalloc takes of the card; 0: all of it.
    """

    card: int
    allocator: str = "stratalloc"
    host_budget: int = 0
    limit: int = 0

    def enter(self):
        settings = {}
        if self.allocator == "stratalloc":
            settings = {"host_budget": self.host_budget,
                        "gpu_limit": self.limit}
        place.device(self.card, self.allocator, **settings)


OPTIMIZERS = {
    "SGD": lambda torch, parameters: torch.optim.SGD(
        parameters, 1e-3, momentum=.9),
    "AdamW": lambda torch, parameters: torch.optim.AdamW(parameters),
    "AdamW for-loop": lambda torch, parameters: torch.optim.AdamW(
        parameters, foreach=False),
    "AdamW fused": lambda torch, parameters: torch.optim.AdamW(
        parameters, fused=True),
}
# Tensors as large as a parameter: it, its gradient and the optimizer's state.
COPIES = {name: 3 if name == "SGD" else 4 for name in OPTIMIZERS}


def inference(stack, where, warm_up, measured, waiting=0):
    """Forward passes; `waiting` more of them note the time of each operator.

    As many again allocate before each layer, and note the time of that.
    """
    import torch

    from tests.system.speed import waits  # imports torch

    where.enter()
    before = clock.pinned()
    model, x = stack.build(), stack.input()
    torch.cuda.synchronize()
    passes, noted, mallocs = clock.Passes(), waits.Waits(), waits.Waits()
    with torch.no_grad():
        for _ in range(warm_up + measured):
            with passes:
                model(x)
        for _ in range(waiting):
            with noted:
                model(x)
            torch.cuda.synchronize()
        for _ in range(waiting):
            with mallocs:
                _pass_with_mallocs(model, x)
            torch.cuda.synchronize()
    noted.mallocs = mallocs.mallocs
    return _result(passes, before, noted)


def _pass_with_mallocs(model, x):
    """The same pass, in which the program allocates as often as it computes."""
    import torch

    for layer in model:
        scratch = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        x = layer(x)
        del scratch


def training(stack, where, optimizer, warm_up, measured, waiting=0):
    """Steps: forward, backward, optimizer, gradients to None."""
    import torch

    from tests.system.speed import waits  # imports torch

    where.enter()
    before = clock.pinned()
    model, x = stack.build(), stack.input()
    stepper = OPTIMIZERS[optimizer](torch, model.parameters())

    def step():
        model(x).sum().backward()
        stepper.step()
        stepper.zero_grad()

    passes, noted = clock.Passes(), waits.Waits()
    for _ in range(warm_up + measured):
        with passes:
            step()
    for _ in range(waiting):
        with noted:
            step()
        torch.cuda.synchronize()
    return _result(passes, before, noted)


def recorded(stack, where, optimizer, cycles=3):
    """A trace of such steps (tests/system/planner), on a device with room.

    Times are those of kernels alone: no call, no wait, no copy.
    """
    import torch

    from tests.system.planner import record

    where.enter()
    driver = clock.driver()

    def now():
        torch.cuda.synchronize()
        return int(driver.cudasim_virtual_total(b"compute_busy_ns"))

    model, x = stack.build(), stack.input()
    stepper = OPTIMIZERS[optimizer](torch, model.parameters())
    recorder = record.Recorder(torch, now)
    recorder.add(model)
    with recorder.recorder_mode:
        for _ in range(cycles):
            loss = model(x).sum()
            with recorder.backward():
                loss.backward()
            del loss
            with recorder.step(stepper):
                stepper.step()
            stepper.zero_grad()
            recorder.cycle()
    return recorder.text(optimizer.replace(" ", "-"))


def _result(passes, pinned_before, noted):
    import torch

    import stratalloc

    handle = 0
    if stratalloc.is_enabled():
        handle = stratalloc.report(0)["handles"]["large_handle_bytes"]
    return {"passes": passes.rows, "waits": noted.summary(),
            "pinned_before": pinned_before, "pinned_after": clock.pinned(),
            "peak": torch.cuda.max_memory_allocated(), "handle": handle,
            "bus": clock.bus(), "faults": place.faults()}
