# SPDX-License-Identifier: Apache-2.0
"""Passes and training steps larger than the limit, against bus and computing.

A stack of equal Linear layers in bfloat16, as in tests/system/speed: forward
passes of parameters that are a multiple of the limit, where computing takes a
tenth of the bus time, or as long; and steps of optimizers. The bus is measured
here, by pinned copies in one direction and in both together.
"""

import dataclasses

from tests.gpu_kit import answer
from tests.gpu_kit.on_device import GIB
from tests.gpu_kit.on_device import MIB
from tests.gpu_kit.on_device import OnDevice
from tests.gpu_kit.on_device import moved

ASKED = ("How long are passes and steps of jobs larger than the limit, against "
         "the bus and the computing?")
_WARM, _PASSES = 6, 4
_FLOPS = 650e12  # what bfloat16 products of this size reach on an H200
_OPTIMIZERS = {
    "SGD": lambda torch, parameters: torch.optim.SGD(
        parameters, 1e-3, momentum=.9),
    "AdamW fused": lambda torch, parameters: torch.optim.AdamW(
        parameters, fused=True),
    "AdamW": lambda torch, parameters: torch.optim.AdamW(parameters),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One job; `ratio` is computing of the bus time, by _FLOPS."""

    limit: int
    width: int
    multiple: float
    ratio: float
    optimizer: str = ""

    @property
    def name(self):
        kind = self.optimizer or "forward"
        return f"{kind}, {self.multiple:g}x, compute {self.ratio:g} of bus"

    @property
    def layer_bytes(self):
        return 2 * self.width * self.width

    @property
    def copies(self):
        """Tensors as large as the parameters, them included."""
        return {"": 1, "SGD": 3}.get(self.optimizer, 4)

    @property
    def layers(self):
        return round(self.multiple * self.limit
                     / (self.layer_bytes * self.copies))

    @property
    def bytes(self):
        return self.layers * self.layer_bytes * self.copies

    def tokens(self, bus):
        """For which computing takes `ratio` times the bus time."""
        products = 3 if self.optimizer else 1
        seconds = self.ratio * (self.bytes - self.limit) / bus
        return max(8, round(seconds * _FLOPS / (
            products * self.layer_bytes * self.layers) / 8) * 8)


def jobs(simulated):
    """The jobs of the step, in the order in which they are run."""
    if simulated:
        return [Job(192 * MIB, 1024, 1.25, .01),
                Job(192 * MIB, 1024, 1.25, .01, "AdamW fused")]
    return [Job(8 * GIB, 4096, multiple, ratio) for multiple, ratio in (
        (1.05, 1), (1.5, .1), (1.5, 1), (2, .1), (2, 1), (3, 1))] + [
        Job(8 * GIB, 4096, 1.5, 1, optimizer) for optimizer in _OPTIMIZERS]


def run(said):
    bus = said.must(said.child(rates))
    said.figure("pinned copy to the device", bus["up"] / GIB, "GiB/s")
    said.figure("pinned copy to the host", bus["down"] / GIB, "GiB/s")
    said.figure("both together, their sum", bus["both"] / GIB, "GiB/s",
                said.card["pcie_both_gb_per_s"] * 1e9 / GIB)
    room = said.must(said.child(natives, bus["up"]))["jobs"]
    rows = []
    for number, job in enumerate(jobs(said.simulated)):
        native = room[number]
        ours = said.must(said.child(measure, number, bus["up"]))
        # What the step itself takes of the limit; gradients are in bytes.
        least = max(job.bytes, native["peak"]) - job.limit
        bound = max(least / bus["up"], native["pass"])
        rows.append({
            "job": job.name, "bus": 1e3 * least / bus["up"],
            "compute": 1e3 * native["pass"], "pass": 1e3 * ours["pass"],
            "operator": 1e3 * ours["operator"], "in": ours["in"] / GIB,
            "out": ours["out"] / GIB, "least": least / GIB,
            "share": bound / ours["pass"], "passes": ours["passes"]})
        said.table("jobs: times in ms, bytes in GiB", rows)
        said.promise(f"{job.name}: something moved", ours["in"] > 0)
        said.promise(f"{job.name}: no complaint of the simulated device",
                     not ours["complaints"], f"{ours['complaints']}")
        if not job.optimizer:
            said.bar(f"{job.name}: bound of a pass",
                     bound / ours["pass"], at_least=.95)


def rates(said):
    """A child: bytes per second of pinned copies."""
    device = OnDevice(said, "native")
    torch = device.torch
    size = 16 * MIB if said.simulated else GIB
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True)
            for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device="cuda")
             for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def copies(ways):
        found = []
        for _ in range(4):
            with device.seconds(found):
                for way in ways:
                    with torch.cuda.stream(streams[way]):
                        to, source = ((there, host), (host, there))[way]
                        to[way].copy_(source[way], non_blocking=True)
        return len(ways) * size / min(found[1:])

    return {"up": copies([0]), "down": copies([1]), "both": copies([0, 1])}


def natives(said, bus):
    """A child: each job where everything fits, under PyTorch's allocator."""
    device = OnDevice(said, "native")
    torch, found = device.torch, []
    for job in jobs(said.simulated):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        seconds = []
        one = _program(device, job, bus)
        for _ in range(2 + _PASSES):
            with device.seconds(seconds):
                one()
        found.append({"pass": sum(seconds[2:]) / _PASSES,
                      "peak": torch.cuda.max_memory_allocated()})
        del one
    return {"jobs": found}


def measure(said, number, bus):
    """A child: the mean of the measured passes of one job, in seconds."""
    job = jobs(said.simulated)[number]
    device = OnDevice(said, gpu_limit=job.limit, disk_budget=0,
                      host_budget=job.bytes * 5 // 4)
    one = _program(device, job, bus)
    seconds, operators = [], []
    for index in range(_WARM + _PASSES):
        if index == _WARM:
            before = moved()
        with device.seconds(seconds):
            one()
    after = moved()
    one(operators.append)
    device.torch.cuda.synchronize()
    return {"passes": seconds, "complaints": device.complaints(),
            "pass": sum(seconds[_WARM:]) / _PASSES,
            "operator": max(operators) / 1e9,
            **{way: (after[way] - before[way]) / _PASSES
               for way in ("in", "out")}}


def _program(device, job, bus):
    """A function that runs one pass or step; builds the model."""
    torch = device.torch
    model = torch.nn.Sequential(*(torch.nn.Linear(
        job.width, job.width, bias=False, device="cuda",
        dtype=torch.bfloat16) for _ in range(job.layers)))
    states = torch.zeros(job.tokens(bus), job.width, dtype=torch.bfloat16,
                         device="cuda")
    if job.optimizer:
        return _training(device, model, states, job.optimizer)
    return _forward(device, model, states)


def _forward(device, model, states):
    torch = device.torch

    def one(note=None):
        values = states
        with torch.no_grad():
            for layer in model:
                began = device.now_ns()
                values = layer(values)
                if note:
                    note(device.now_ns() - began)
    return one


def _training(device, model, states, optimizer):
    torch = device.torch
    stepper = _OPTIMIZERS[optimizer](torch, model.parameters())

    def one(note=None):
        began = device.now_ns()
        model(states).sum().backward()
        stepper.step()
        stepper.zero_grad()
        if note:
            note(device.now_ns() - began)
    return one


if __name__ == "__main__":
    answer.main(run, ASKED)
